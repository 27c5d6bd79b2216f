//! A directory as objects: each file is one, and one more lists their names and ids. Whoever has the id of the list has the
//! directory.
//!
//! The list is JSON in one form only (`docs/formats.md`), so the same directory has the same id wherever it is put. It comes
//! from whoever wrote it: no path of it leads out of where it is restored.

use std::{
    error::Error,
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Component, Path, PathBuf},
};

use bytes::Bytes;
use ron_core::{ContentId, Deadline};
use ron_storage::client::Client;
use serde::{Deserialize, Serialize};

/// How every list begins, and nothing else that is likely to be stored.
const MAGIC: &[u8] = b"{\"ron_tree\":1,";

/// What a list may be long: some two hundred thousand files.
const LIST_MAX: u64 = 32 << 20;

/// A directory.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tree {
    /// The version of the form.
    ron_tree: u32,
    /// What is in it, in the order of paths.
    entries: Vec<Entry>,
}

/// A file, or a directory that has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// Where it is, with slashes, below the directory.
    path: String,
    /// Its content; a directory has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// Its length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// Whether it can be run.
    #[serde(default, skip_serializing_if = "is_false")]
    executable: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(value: &bool) -> bool {
    !value
}

/// Why a list cannot be restored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TreeError {
    /// It is not one, or of a later version.
    #[error("{id} is no list of a directory that this version reads: {why}")]
    Malformed {
        /// Which.
        id: ContentId,
        /// What is wrong.
        why: String,
    },
    /// A path leads elsewhere.
    #[error("{id} names {path:?}, which is no place below a directory; nothing was written")]
    Astray {
        /// Which list.
        id: ContentId,
        /// The path.
        path: String,
    },
    /// Something is in the way.
    #[error("{} is in the way of a directory", path.display())]
    InTheWay {
        /// What.
        path: PathBuf,
    },
}

impl Tree {
    /// As it is stored.
    fn encoded(&self) -> Bytes {
        serde_json::to_vec(self).expect("text and numbers can be written").into()
    }

    /// Reads and checks a list.
    fn decode(id: ContentId, bytes: &[u8]) -> Result<Self, TreeError> {
        let malformed = |why: String| TreeError::Malformed { id, why };
        let tree: Tree = serde_json::from_slice(bytes).map_err(|error| malformed(error.to_string()))?;
        if tree.ron_tree != 1 {
            return Err(malformed(format!("version {}", tree.ron_tree)));
        }
        for entry in &tree.entries {
            if !is_below(&entry.path) {
                return Err(TreeError::Astray { id, path: entry.path.clone() });
            }
            if let Some(text) = &entry.id {
                ContentId::parse_any(text).map_err(|error| malformed(format!("{text:?}: {error}")))?;
            }
        }
        match tree.entries.windows(2).find(|two| two[0].path >= two[1].path) {
            Some(two) => Err(malformed(format!("{:?} is out of order", two[1].path))),
            None => Ok(tree),
        }
    }
}

/// Names with slashes between, none of which is special.
fn is_below(path: &str) -> bool {
    let plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    let names = path.split('/').all(|name| !name.is_empty() && name != "." && name != "..");
    plain && names && !path.contains(['\0', '\\'])
}

impl Entry {
    /// A file, or a directory if there is no content.
    pub(crate) fn new(path: String, content: Option<(ContentId, u64)>, executable: bool) -> Self {
        Entry {
            path,
            id: content.map(|(id, _)| id.to_string()),
            size: content.map(|(_, size)| size),
            executable,
        }
    }

    /// Whether it has content.
    pub(crate) fn is_file(&self) -> bool {
        self.id.is_some()
    }
}

/// Something on the disk that belongs into a list.
pub(crate) struct Seen {
    /// Where it is below the directory, as it is written.
    pub(crate) below: String,
    /// Where it is.
    pub(crate) path: PathBuf,
    /// What it is.
    pub(crate) meta: fs::Metadata,
}

/// The files and the empty directories below `dir`, in the order of paths.
pub(crate) fn walk(dir: &Path) -> Result<Vec<Seen>, Box<dyn Error>> {
    let mut found = Vec::new();
    let mut open = vec![(String::new(), dir.to_owned())];
    while let Some((below, dir)) = open.pop() {
        let named = |error: io::Error| format!("{}: {error}", dir.display());
        let mut is_empty = true;
        for entry in fs::read_dir(&dir).map_err(named)? {
            let entry = entry.map_err(named)?;
            is_empty = false;
            let path = entry.path();
            let Some(name) =
                entry.file_name().to_str().filter(|name| !name.contains('\\')).map(str::to_owned)
            else {
                return Err(
                    format!("{}: the name is not text that other systems have too", path.display()).into()
                );
            };
            let below = if below.is_empty() { name } else { format!("{below}/{name}") };
            let meta = fs::symlink_metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            match () {
                () if meta.is_dir() => open.push((below, path)),
                () if meta.is_file() => found.push(Seen { below, path, meta }),
                () => {
                    let path = path.display();
                    return Err(format!(
                        "{path} is neither file nor directory: put `tar c DIR | refd put -` instead"
                    )
                    .into());
                }
            }
        }
        if is_empty && !below.is_empty() {
            let meta = fs::metadata(&dir).map_err(named)?;
            found.push(Seen { below, path: dir, meta });
        }
    }
    found.sort_by(|one, other| one.below.cmp(&other.below));
    Ok(found)
}

/// The list of what was put, in the order of paths.
pub(crate) fn list(entries: Vec<Entry>) -> Bytes {
    Tree { ron_tree: 1, entries }.encoded()
}

/// Whether a file can be run by its owner.
pub(crate) fn is_executable(meta: &fs::Metadata) -> bool {
    meta.is_file() && meta.permissions().mode() & 0o100 != 0
}

/// The list that `id` is, if it is one.
pub(crate) async fn look(
    client: &Client,
    id: ContentId,
    deadline: Deadline,
) -> Result<Option<Tree>, Box<dyn Error>> {
    let size = client.stat(id, deadline).await?.size;
    if size < MAGIC.len() as u64 {
        return Ok(None);
    }
    let begin = read(client, id, MAGIC.len() as u64, deadline).await?;
    if begin != MAGIC {
        return Ok(None);
    }
    if size > LIST_MAX {
        let why = format!("it has {size} bytes, and {LIST_MAX} is the limit");
        return Err(TreeError::Malformed { id, why }.into());
    }
    Ok(Some(Tree::decode(id, &read(client, id, size, deadline).await?)?))
}

async fn read(
    client: &Client,
    id: ContentId,
    len: u64,
    deadline: Deadline,
) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut fetch = client.get(id, ..len, deadline).await?;
    let mut content = Vec::new();
    while let Some(bytes) = fetch.next().await? {
        content.extend_from_slice(&bytes);
    }
    Ok(content)
}

/// Restores a directory into `output`. What is there of it already is checked and not fetched again; nothing else there is
/// touched. Returns files and bytes.
pub(crate) async fn restore(
    tree: &Tree,
    client: &Client,
    output: &Path,
    deadline: impl Fn() -> Deadline,
) -> Result<(u64, u64), Box<dyn Error>> {
    let (mut files, mut bytes) = (0, 0);
    make_dir(output)?;
    for entry in &tree.entries {
        let path = output.join(&entry.path);
        let parents = Path::new(&entry.path).parent().into_iter().flat_map(Path::components);
        let mut dir = output.to_owned();
        for part in parents {
            dir.push(part);
            make_dir(&dir)?;
        }
        let Some(id) = &entry.id else {
            make_dir(&path)?;
            continue;
        };
        let id = ContentId::parse_any(id).expect("checked when it was read");
        files += 1;
        bytes += match kept(&path, id)? {
            Some(size) => size,
            None => crate::client::fetch_file(client, id, &path, &deadline).await?,
        };
        let mode = if entry.executable { 0o755 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok((files, bytes))
}

/// A directory that is there, and is no link to elsewhere.
fn make_dir(path: &Path) -> Result<(), Box<dyn Error>> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(TreeError::InTheWay { path: path.to_owned() }.into()),
        Err(_) => fs::create_dir(path).map_err(|error| format!("{}: {error}", path.display()).into()),
    }
}

/// The length of a file that is what it should be already.
fn kept(path: &Path, id: ContentId) -> Result<Option<u64>, Box<dyn Error>> {
    let Ok(meta) = fs::symlink_metadata(path) else { return Ok(None) };
    if !meta.is_file() {
        return Err(TreeError::InTheWay { path: path.to_owned() }.into());
    }
    let mut hasher = blake3::Hasher::new();
    let file = fs::File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    hasher.update_reader(file)?;
    let is_same = ContentId::from_bytes(*hasher.finalize().as_bytes()) == id;
    Ok(is_same.then(|| hasher.count()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]
mod tests {
    use super::*;

    const ID: ContentId = ContentId::from_bytes([7; 32]);

    #[test]
    fn a_list_has_one_form() {
        let bytes = list(vec![
            Entry::new("a/b".to_owned(), Some((ID, 3)), true),
            Entry::new("c".to_owned(), None, false),
        ]);
        let text = format!(
            "{{\"ron_tree\":1,\"entries\":[{{\"path\":\"a/b\",\"id\":\"{ID}\",\"size\":3,\"executable\":true}},{{\"path\":\"c\"}}]}}"
        );
        assert_eq!(bytes, text.as_bytes());
        assert!(bytes.starts_with(MAGIC));
        assert_eq!(Tree::decode(ID, &bytes).unwrap().encoded(), bytes);
        for wrong in [
            "{\"ron_tree\":2,\"entries\":[]}",
            "{\"ron_tree\":1,\"entries\":[],\"more\":1}",
            "{\"ron_tree\":1,\"entries\":[{\"path\":\"b\"},{\"path\":\"a\"}]}",
            "{\"ron_tree\":1,\"entries\":[{\"path\":\"a\"},{\"path\":\"a\"}]}",
            "{\"ron_tree\":1,\"entries\":[{\"path\":\"a\",\"id\":\"b3:xx\"}]}",
        ] {
            let refused = Tree::decode(ID, wrong.as_bytes());
            assert!(matches!(refused, Err(TreeError::Malformed { .. })), "{wrong}");
        }
    }

    /// Whoever wrote the list is not trusted with the rest of the disk.
    #[test]
    fn no_path_leads_out() {
        for path in
            ["..", "../x", "a/../../x", "/etc/passwd", "", "a//b", "./a", "a/", "a/.", "x\0y", "..\\x"]
        {
            let text = serde_json::json!({"ron_tree": 1, "entries": [{"path": path}]}).to_string();
            // The order of keys is not the one form, but it is read all the same.
            assert!(matches!(Tree::decode(ID, text.as_bytes()), Err(TreeError::Astray { .. })), "{path:?}");
        }
        for path in ["a", "a/b", "..a", "a b", "ä"] {
            assert!(is_below(path), "{path}");
        }
    }
}
