//! `docs/security.md` against the tree: a test that is renamed, removed or switched off is noticed here.

use std::{collections::BTreeSet, fs, path::Path};

/// `path.rs::name`, as the table writes it, is a test, and one that runs.
fn check(root: &Path, named: &str) -> Result<(), String> {
    let (file, name) = named.split_once("::").ok_or("no name")?;
    let text = fs::read_to_string(root.join(file)).map_err(|error| error.to_string())?;
    let lines: Vec<&str> = text.lines().collect();
    let begins = [format!("fn {name}("), format!("async fn {name}(")];
    let at = lines.iter().position(|line| begins.iter().any(|begin| line.trim_start().starts_with(begin)));
    let at = at.ok_or("there is no such function")?;
    // Its attributes and comments are what stands above it without a gap.
    let above: Vec<&str> =
        lines[..at].iter().rev().map(|line| line.trim()).take_while(|line| !line.is_empty()).collect();
    let is_test = |line: &&str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    let attributes = above
        .iter()
        .take_while(|line| line.starts_with('#') || line.starts_with("//") || line.ends_with(")]"));
    let attributes: Vec<&str> = attributes.copied().collect();
    if !attributes.iter().any(is_test) {
        return Err("it is no test".to_owned());
    }
    match attributes.iter().any(|line| line.starts_with("#[ignore")) {
        true => Err("it does not run".to_owned()),
        false => Ok(()),
    }
}

#[test]
fn every_case_has_tests_that_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = fs::read_to_string(root.join("docs/security.md")).unwrap();
    let (_, text) = text.split_once("## Abuse cases").unwrap();
    let (table, others) = text.split_once("## Cases that do not apply").unwrap();
    let cells =
        |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let rows = |text: &str| -> Vec<Vec<String>> {
        let rows = text.lines().filter(|line| line.starts_with("| ")).map(cells);
        rows.filter(|row| row[0].parse::<u32>().is_ok()).collect()
    };
    let (mut wrong, mut numbers) = (Vec::new(), BTreeSet::new());
    for row in rows(table) {
        assert_eq!(row.len(), 5, "{row:?}");
        assert!(row.iter().all(|cell| !cell.is_empty()), "{row:?}");
        assert!(numbers.insert(row[0].parse::<u32>().unwrap()), "{} is there twice", row[0]);
        let named: Vec<&str> = row[3].split('`').filter(|word| word.contains("::")).collect();
        assert!(!named.is_empty(), "{row:?}");
        wrong.extend(
            named.into_iter().filter_map(|named| Some(format!("{named}: {}", check(&root, named).err()?))),
        );
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // All of the list, here or with the reason why not.
    numbers.extend(rows(others).iter().map(|row| row[0].parse::<u32>().unwrap()));
    assert_eq!(numbers, (1..=62).collect());
    // What is in the suite is in the table.
    for entry in fs::read_dir(root.join("refd/tests/run/abuse")).unwrap().flatten() {
        let (name, text) = (entry.file_name(), fs::read_to_string(entry.path()).unwrap());
        let names = text.split("#[test]\nfn ").skip(1).map(|rest| rest.split('(').next().unwrap());
        for test in names.filter(|_| name != "table.rs") {
            let named = format!("`refd/tests/run/abuse/{}::{test}`", name.to_str().unwrap());
            assert!(table.contains(&named), "{named} is in no row");
        }
    }
}
