//! `docs/security.md` against the tree: a test that is renamed, removed or switched off is noticed here, and one that stands in the row
//! of another case than it says.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Every function of a text by its name, and whether it is a test that runs: if not, why not.
fn functions(text: &str) -> Vec<(&str, Result<(), &'static str>)> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let name = |line: &'_ str| {
        let (before, after) = line.split_once("fn ")?;
        let is_one = before.split_whitespace().all(|word| word == "async" || word.starts_with("pub"));
        is_one.then_some(after.len())
    };
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(len) = name(line) else { continue };
        let after = &line[line.len() - len..];
        // Its attributes and comments are what stands above it without a gap.
        let attributes: Vec<&str> = lines[..at]
            .iter()
            .rev()
            .take_while(|line| line.starts_with('#') || line.starts_with("//") || line.ends_with(")]"))
            .copied()
            .collect();
        let has = |begin: &str| attributes.iter().any(|line| line.starts_with(begin));
        let is_test = match (has("#[test]") || has("#[tokio::test"), has("#[ignore")) {
            (false, _) => Err("it is no test"),
            (true, true) => Err("it does not run"),
            (true, false) => Ok(()),
        };
        found.push((after.split(['(', '<']).next().unwrap(), is_test));
    }
    found
}

/// `path.rs::name`, as the table writes it, is a test, and one that runs.
fn check(root: &Path, named: &str) -> Result<(), String> {
    let (file, name) = named.split_once("::").ok_or("no name")?;
    let text = fs::read_to_string(root.join(file)).map_err(|error| error.to_string())?;
    let found = functions(&text).into_iter().find(|(found, _)| *found == name);
    found.ok_or("there is no such function")?.1.map_err(str::to_owned)
}

/// The cases that a test says it is about: the numbers behind `Case` or `Cases` in what stands above it.
fn cases(text: &str, name: &str) -> BTreeSet<u32> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let at = lines.iter().position(|line| line.contains(&format!("fn {name}("))).unwrap();
    let above = lines[..at].iter().rev().take_while(|line| line.starts_with('#') || line.starts_with("///"));
    let mut said: Vec<&str> = above.filter_map(|line| line.strip_prefix("///")).collect();
    said.reverse();
    let (said, mut found, mut counts) = (said.join(" "), BTreeSet::new(), false);
    for word in said.split_whitespace() {
        let number = word.trim_end_matches(|letter: char| !letter.is_ascii_digit()).parse::<u32>().ok();
        found.extend(number.filter(|_| counts));
        counts = word.starts_with("Case") || counts && (number.is_some() || word == "and");
    }
    found
}

#[test]
fn the_cases_of_a_test_are_what_it_says() {
    let text = "/// Cases 17, 18 and 26: of 3 kinds.\n#[test]\nfn one() {\n\n/// Nobody has 5. Case\n/// 12.\nfn two() {\n";
    assert_eq!(cases(text, "one"), [17, 18, 26].into());
    assert_eq!(cases(text, "two"), [12].into());
}

#[test]
fn what_is_no_test_is_noticed() {
    let text = "#[test]\nfn one() {\n\n/// Words.\n#[tokio::test(start_paused = true)]\n#[cfg(unix)]\nasync fn two() {\n\
                #[test]\n#[ignore]\nfn three() {\n#[test]\n\nfn four() {\npub(super) fn five<T>(\n// fn six()\n";
    let found = functions(text);
    let is_test: Vec<(&str, bool)> = found.iter().map(|(name, is_test)| (*name, is_test.is_ok())).collect();
    let wanted = [("one", true), ("two", true), ("three", false), ("four", false), ("five", false)];
    assert_eq!(is_test, wanted);
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
    let mut rows_of = BTreeMap::<String, BTreeSet<u32>>::new();
    for row in rows(table) {
        assert_eq!(row.len(), 5, "{row:?}");
        assert!(row.iter().all(|cell| !cell.is_empty()), "{row:?}");
        assert!(numbers.insert(row[0].parse::<u32>().unwrap()), "{} is there twice", row[0]);
        let named: Vec<&str> = row[3].split('`').filter(|word| word.contains("::")).collect();
        for named in &named {
            rows_of.entry((*named).to_owned()).or_default().insert(row[0].parse().unwrap());
        }
        // One row is about what the program does not speak.
        let is_tried = named.iter().any(|named| named.starts_with("refd/tests/run/"));
        assert!(!named.is_empty() && (is_tried || row[0] == "23"), "{row:?}");
        wrong.extend(
            named.into_iter().filter_map(|named| Some(format!("{named}: {}", check(&root, named).err()?))),
        );
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // All of the list, here or with the reason why not.
    numbers.extend(rows(others).iter().map(|row| row[0].parse::<u32>().unwrap()));
    assert_eq!(numbers, (1..=62).collect());
    // What is in the suite runs, and is in the table.
    let suite = fs::read_to_string(root.join("refd/tests/run/abuse.rs")).unwrap();
    for entry in fs::read_dir(root.join("refd/tests/run/abuse")).unwrap().flatten() {
        let (name, text) = (entry.file_name(), fs::read_to_string(entry.path()).unwrap());
        let name = name.to_str().unwrap();
        let module = format!("mod {};", name.strip_suffix(".rs").unwrap());
        assert!(suite.lines().any(|line| line == module), "{name} is no part of the suite");
        for (test, is_test) in functions(&text).into_iter().filter(|_| name != "table.rs") {
            let named = format!("refd/tests/run/abuse/{name}::{test}");
            assert!(is_test != Err("it does not run"), "{named} does not run");
            if is_test.is_ok() {
                let rows = rows_of.get(&named).unwrap_or_else(|| panic!("{named} is in no row"));
                assert_eq!(
                    *rows,
                    cases(&text, test),
                    "{named}: the rows it is in, and the cases that it says"
                );
            }
        }
    }
}
