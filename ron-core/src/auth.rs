//! Who may do what: asked before a body is read and before anything is queued.
//!
//! The default is one secret in a file that only its owner can read. Whatever replaces it, capability tokens for
//! example, answers the same question through [`Authorizer`].

use std::{
    borrow::Cow,
    fmt, fs,
    io::{self, Read as _, Write as _},
    net::IpAddr,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use data_encoding::BASE32_NOPAD;

use crate::{
    Snapshot,
    disk::{NotPlain, open_plain},
};

/// What somebody wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Action<'a> {
    /// The kind of thing, such as `objects.put`: fixed in the program.
    pub name: &'static str,
    /// What it is done to, such as the path of a request. Empty when that does not matter.
    pub resource: &'a str,
}

impl<'a> Action<'a> {
    /// `name` done to `resource`.
    #[must_use]
    pub const fn new(name: &'static str, resource: &'a str) -> Self {
        Action { name, resource }
    }
}

/// What somebody shows to be let in.
#[derive(Clone, Copy, Default)]
#[non_exhaustive]
pub struct Credentials<'a> {
    /// The bearer token, if one was shown.
    pub bearer: Option<&'a str>,
    /// The address it comes from, if it comes over the network.
    pub address: Option<IpAddr>,
}

impl<'a> Credentials<'a> {
    /// A token, or none.
    #[must_use]
    pub const fn bearer(token: Option<&'a str>) -> Self {
        Credentials { bearer: token, address: None }
    }

    /// With the address of whoever shows it.
    #[must_use]
    pub const fn from_address(mut self, address: Option<IpAddr>) -> Self {
        self.address = address;
        self
    }
}

impl fmt::Debug for Credentials<'_> {
    /// Never the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("bearer", &self.bearer.map(|_| "hidden"))
            .field("address", &self.address)
            .finish()
    }
}

/// That somebody was let in, and as whom.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// A name for logs and quotas. Never the secret.
    pub subject: Cow<'static, str>,
}

impl Grant {
    /// Let in as `subject`.
    #[must_use]
    pub fn new(subject: impl Into<Cow<'static, str>>) -> Self {
        Grant { subject: subject.into() }
    }
}

/// Why somebody was not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Denied {
    /// Nothing was shown.
    #[error("no credentials")]
    Missing,
    /// What was shown is not known. Not said: how close it was.
    #[error("unknown credentials")]
    Unknown,
    /// Known, and not for this action.
    #[error("not allowed")]
    Forbidden,
}

/// Decides. Asked on the request path, so it must neither block nor wait: keep what is needed in memory.
pub trait Authorizer: Send + Sync + 'static {
    /// Whether `credentials` allow `action`.
    ///
    /// # Errors
    /// [`Denied`].
    fn authorize(&self, action: &Action<'_>, credentials: &Credentials<'_>) -> Result<Grant, Denied>;
}

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenFileError {
    /// Reading or writing failed.
    #[error("token file {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// It is a symbolic link. Whoever made it would decide what is read; name the file that it leads to.
    #[error("token file {} is a symbolic link; name the file that it leads to", path.display())]
    Symlink {
        /// The link.
        path: PathBuf,
    },
    /// It is a directory, a pipe or a device.
    #[error("token file {} is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Others than the owner can read or write it: it is no secret. `chmod 600` it and change the token.
    #[error("token file {} has mode {mode:o}, it must be 600", path.display())]
    TooOpen {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It holds no token of at least [`TokenFile::LENGTH_MIN`] printable characters.
    #[error("token file {} holds no usable token", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
    },
}

/// One bearer token for everything, in a file with mode 0600. Cloning shares it.
///
/// The token is not kept in memory, only its hash; two hashes are compared in constant time.
#[derive(Clone)]
pub struct TokenFile {
    path: PathBuf,
    hash: Snapshot<blake3::Hash>,
}

impl TokenFile {
    /// The shortest token that is accepted from a file: 128 bits in base32 are 26 characters.
    pub const LENGTH_MIN: usize = 26;

    /// The longest one. What a client shows beyond it is refused without being hashed.
    pub const LENGTH_MAX: usize = 1024;

    /// Opens the file, or makes it (and its directory, 0700) with a random token of 256 bits. A symbolic link in its
    /// place is refused. It blocks for a file system call or two: call it at start.
    ///
    /// # Errors
    /// [`TokenFileError`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, TokenFileError> {
        let path = path.into();
        let failed = |source| TokenFileError::Io { path: path.clone(), source };
        match create(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
        let hash = Snapshot::new(load(&path)?);
        Ok(TokenFile { path, hash })
    }

    /// Reads the file again, for when it was changed. The old token holds until this succeeds. It blocks like
    /// [`open`](TokenFile::open).
    ///
    /// # Errors
    /// [`TokenFileError`]; the old token stays.
    pub fn reload(&self) -> Result<(), TokenFileError> {
        self.hash.replace(load(&self.path)?);
        Ok(())
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Authorizer for TokenFile {
    fn authorize(&self, _: &Action<'_>, credentials: &Credentials<'_>) -> Result<Grant, Denied> {
        let shown = credentials.bearer.ok_or(Denied::Missing)?;
        // The hash hides the length and the content from the clock; blake3 compares hashes in constant time.
        if shown.len() <= Self::LENGTH_MAX && hash(shown) == *self.hash.load() {
            Ok(Grant::new("token"))
        } else {
            Err(Denied::Unknown)
        }
    }
}

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenFile").field("path", &self.path).finish_non_exhaustive()
    }
}

fn hash(token: &str) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_derive_key("ron-core auth token v1");
    hasher.update(token.as_bytes());
    hasher.finalize()
}

/// Writes a new token beside `path` and links it there, so that nobody ever sees half a token, and an existing file is
/// never replaced.
fn create(path: &Path) -> io::Result<()> {
    if path.try_exists()? {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    }
    let mut secret = [0; 32];
    let mut filled = 0;
    while filled < secret.len() {
        filled += rustix::rand::getrandom(&mut secret[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(format!(".{:016x}", fastrand::u64(..)));
    let fresh = PathBuf::from(fresh);
    let written = (|| {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        // Lower case: people read it aloud and type it.
        let token = BASE32_NOPAD.encode(&secret).to_ascii_lowercase();
        file.write_all(token.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::hard_link(&fresh, path)
    })();
    let _ = fs::remove_file(&fresh);
    written?;
    // The name must survive a crash too: clients have this token from now on.
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    fs::File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
}

fn load(path: &Path) -> Result<blake3::Hash, TokenFileError> {
    let failed = |source| TokenFileError::Io { path: path.to_owned(), source };
    let file = open_plain(path).map_err(|not| match not {
        NotPlain::Symlink => TokenFileError::Symlink { path: path.to_owned() },
        NotPlain::NotAFile => TokenFileError::NotAFile { path: path.to_owned() },
        NotPlain::Io(_, source) => failed(source),
    })?;
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(TokenFileError::TooOpen { path: path.to_owned(), mode });
    }
    let mut text = String::new();
    // Two more than the longest, for the line end: whatever is larger is no token.
    file.take(TokenFile::LENGTH_MAX as u64 + 2).read_to_string(&mut text).map_err(failed)?;
    let token = text.trim_end_matches(['\r', '\n']);
    let usable = (TokenFile::LENGTH_MIN..=TokenFile::LENGTH_MAX).contains(&token.len())
        && token.bytes().all(|byte| byte.is_ascii_graphic());
    if !usable {
        return Err(TokenFileError::Unusable { path: path.to_owned() });
    }
    Ok(hash(token))
}

#[cfg(all(test, not(ron_loom)))]
mod tests {
    use super::*;

    const WRITE: Action<'static> = Action::new("objects.put", "/o");

    fn ask(tokens: &TokenFile, shown: Option<&str>) -> Result<Grant, Denied> {
        tokens.authorize(&WRITE, &Credentials::bearer(shown))
    }

    fn token_in(path: &Path) -> String {
        fs::read_to_string(path).expect("readable").trim().to_owned()
    }

    #[test]
    fn a_missing_file_is_made_for_its_owner_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("secrets/token");
        let tokens = TokenFile::open(&path).expect("made");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().expect("in a directory"))), (0o600, 0o700));
        let token = token_in(&path);
        assert_eq!(token.len(), 52, "256 bits in base32");
        assert_eq!(ask(&tokens, Some(&token)), Ok(Grant::new("token")));
        assert_eq!(ask(&tokens, None), Err(Denied::Missing));
        for wrong in ["", "x", &token[1..], &format!("{token}x"), &token.to_ascii_uppercase()] {
            assert_eq!(ask(&tokens, Some(wrong)), Err(Denied::Unknown), "{wrong}");
        }
        assert_eq!(ask(&tokens, Some(&"x".repeat(1 << 20))), Err(Denied::Unknown));
        // Opened again it is the same one, and nothing is left beside it.
        assert!(ask(&TokenFile::open(&path).expect("there"), Some(&token)).is_ok());
        assert_eq!(fs::read_dir(path.parent().expect("in a directory")).expect("listed").count(), 1);
    }

    #[test]
    fn a_changed_file_counts_after_the_reload_and_a_bad_one_never() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        let tokens = TokenFile::open(&path).expect("made");
        let (old, new) = (token_in(&path), "n".repeat(40));
        fs::write(&path, &new).expect("written");
        assert!(ask(&tokens, Some(&old)).is_ok());
        tokens.reload().expect("usable");
        assert_eq!(ask(&tokens, Some(&old)), Err(Denied::Unknown));
        assert!(ask(&tokens, Some(&new)).is_ok());
        for unusable in ["", "short", "has white space in the middle of it", &"l".repeat(2000)] {
            fs::write(&path, unusable).expect("written");
            assert!(matches!(tokens.reload(), Err(TokenFileError::Unusable { .. })), "{unusable}");
        }
        assert!(ask(&tokens, Some(&new)).is_ok(), "the last usable one holds");
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        TokenFile::open(&path).expect("made");
        for mode in [0o640, 0o604, 0o660] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
            let error = TokenFile::open(&path).expect_err("too open");
            assert!(matches!(error, TokenFileError::TooOpen { mode: found, .. } if found == mode), "{error}");
        }
    }

    /// The token was read through a link, and a pipe in its place made the node wait for ever.
    #[test]
    fn what_is_planted_in_place_of_the_file_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, aside) = (dir.path().join("token"), dir.path().join("aside"));
        let tokens = TokenFile::open(&path).expect("made");
        let token = token_in(&path);
        fs::rename(&path, &aside).expect("ours");
        for target in [&aside, &dir.path().join("nothing")] {
            std::os::unix::fs::symlink(target, &path).expect("linked");
            for refused in [TokenFile::open(&path).map(drop), tokens.reload()] {
                let error = refused.expect_err("a link");
                assert!(matches!(error, TokenFileError::Symlink { .. }), "{error}");
            }
            fs::remove_file(&path).expect("ours");
        }
        assert!(!dir.path().join("nothing").exists());
        fs::DirBuilder::new().mode(0o700).create(&path).expect("made");
        assert!(matches!(TokenFile::open(&path), Err(TokenFileError::NotAFile { .. })));
        fs::remove_dir(&path).expect("ours");
        let mut pipe = std::process::Command::new("mkfifo");
        if pipe.args(["-m", "600"]).arg(&path).status().is_ok_and(|made| made.success()) {
            assert!(matches!(TokenFile::open(&path), Err(TokenFileError::NotAFile { .. })));
        }
        assert!(ask(&tokens, Some(&token)).is_ok(), "the last usable one holds");
        // A directory on the way is the choice of whoever named the path.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).expect("linked");
        assert!(ask(&TokenFile::open(link.join("aside")).expect("there"), Some(&token)).is_ok());
    }

    /// A canary: whatever is printed about the parts, the token is not in it.
    #[test]
    fn the_token_is_in_no_words() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        let tokens = TokenFile::open(&path).expect("made");
        let canary = token_in(&path);
        let shown = Credentials::bearer(Some(&canary));
        fs::write(&path, format!("{canary} {canary}")).expect("written");
        let error = tokens.reload().expect_err("unusable");
        let denied = ask(&tokens, Some(&format!("{canary}x"))).expect_err("wrong");
        let grant = ask(&tokens, Some(&canary));
        let words =
            format!("{tokens:?} {shown:?} {shown:#?} {error} {error:?} {denied} {denied:?} {grant:?}");
        assert!(!words.contains(&canary), "{words}");
    }
}
