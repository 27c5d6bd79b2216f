//! Who a node is: an ed25519 key, the file it lives in, and what may be signed with it.
//!
//! Losing the key is losing the name, so a key file is never overwritten: it is written whole under another name and
//! then linked into place, which fails if anything is there. Leaking the key is giving the name away, so the secret
//! is readable by its owner only, is wiped from memory, and is printed by nothing. Every signature names what it is
//! for; bytes signed for one purpose never verify for another.

use std::{
    fmt, fs,
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use ed25519_dalek::{Signature as RawSignature, Signer as _, SigningKey, VerifyingKey};
use zeroize::Zeroizing;

/// In a simulated world, a signature is checked once for all its nodes.
#[cfg(feature = "sim")]
use crate::sim::once as checked;
use crate::{
    IdError, NodeId,
    disk::{NotPlain, open_plain},
    error::{ErrorKind, Refusal},
    id::{read_hex, write_hex},
};

/// A key file is the 32 bytes of the ed25519 seed and nothing else.
const KEY_BYTES: usize = 32;

/// Bits of a mode that give anything to somebody else.
const SHARED_MODE: u32 = 0o077;

/// What every signed message begins with. It cannot begin like the message that TLS signs, which starts with spaces,
/// so a handshake never yields a signature that is useful here, nor the other way round.
const SIGNED_PREFIX: &[u8] = b"ron/sign/1";

/// An ed25519 seed as PKCS #8 is these bytes and the seed (RFC 8410).
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// What a key of small order can look like, but for its sign: eight points have an order that divides eight, and five second
/// coordinates: 0, 1, -1 and two of order eight. Only 0 and 1 are small enough to be written with the prime of the field added
/// to them as well. To look here is a thousandth of what it costs to find the point and double it.
const SMALL_ORDER: [[u8; KEY_BYTES]; 7] = [
    little_endian(0, 0, 0),
    little_endian(1, 0, 0),
    little_endian(0xec, 0xff, 0x7f),
    little_endian(0xed, 0xff, 0x7f),
    little_endian(0xee, 0xff, 0x7f),
    [
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5,
        0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05,
    ],
    [
        0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f, 0x2a,
        0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a,
    ],
];

const fn little_endian(first: u8, between: u8, last: u8) -> [u8; KEY_BYTES] {
    let mut bytes = [between; KEY_BYTES];
    bytes[0] = first;
    bytes[KEY_BYTES - 1] = last;
    bytes
}

/// Names a fresh temporary file may collide with before we give up: with 64 random bits, one is already unlikely.
const TEMP_NAMES_TRIED: u32 = 4;

/// The secret that makes a node itself. Cloning shares it; the last clone wipes it.
#[derive(Clone)]
pub struct Identity {
    key: Arc<SigningKey>,
}

impl Identity {
    /// A new identity from the operating system's randomness.
    ///
    /// # Errors
    /// [`IdentityError::NoRandomness`].
    pub fn generate() -> Result<Self, IdentityError> {
        let mut seed = Zeroizing::new([0; KEY_BYTES]);
        fill_random(&mut *seed)?;
        Ok(Self::from_seed(&seed))
    }

    /// The identity of a known seed. For tests and simulations that must repeat, and for keys kept elsewhere.
    #[must_use]
    pub fn from_seed(seed: &[u8; KEY_BYTES]) -> Self {
        Identity { key: Arc::new(SigningKey::from_bytes(seed)) }
    }

    /// Reads the key file at `path`; if there is none, creates it, for its owner only. An existing file is never
    /// changed, and of several processes that create at once one wins and the others read its key.
    ///
    /// This blocks on the disk: call it before the runtime has other work, or through `Supervisor::blocking`.
    ///
    /// # Errors
    /// An [`IdentityError`] with the path: the file is a link, not a file, readable by others or not 32 bytes long,
    /// or the disk failed.
    pub fn load_or_create(path: impl AsRef<Path>) -> Result<Self, IdentityError> {
        let path = path.as_ref();
        match Self::load(path) {
            Err(IdentityError::Io { kind: io::ErrorKind::NotFound, op: "open", .. }) => {}
            loaded => return loaded,
        }
        let fresh = Self::generate()?;
        match fresh.create(path) {
            // Somebody was faster. Their key is the node's key.
            Err(IdentityError::Io { kind: io::ErrorKind::AlreadyExists, op: "link", .. }) => Self::load(path),
            created => created.map(|()| fresh),
        }
    }

    /// Reads the key file at `path`.
    ///
    /// # Errors
    /// As [`load_or_create`](Self::load_or_create), and [`IdentityError::Io`] if there is none.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, IdentityError> {
        let path = path.as_ref();
        let mut file = open_plain(path).map_err(|not| match not {
            NotPlain::Symlink => IdentityError::Symlink { path: path.to_owned() },
            NotPlain::NotAFile => IdentityError::NotAFile { path: path.to_owned() },
            NotPlain::Io(op, error) => IdentityError::io(op, path, &error),
        })?;
        let about = file.metadata().map_err(|error| IdentityError::io("stat", path, &error))?;
        if about.mode() & SHARED_MODE != 0 {
            return Err(IdentityError::Permissions { path: path.to_owned(), mode: about.mode() & 0o7777 });
        }
        if about.len() != KEY_BYTES as u64 {
            return Err(IdentityError::Length { path: path.to_owned(), found: about.len() });
        }
        let mut seed = Zeroizing::new([0; KEY_BYTES]);
        file.read_exact(&mut *seed).map_err(|error| IdentityError::io("read", path, &error))?;
        Ok(Self::from_seed(&seed))
    }

    /// Writes the key to a file of its own and links it to `path`, so that the name either does not exist or names a
    /// whole, synced key.
    fn create(&self, path: &Path) -> Result<(), IdentityError> {
        let (temp, mut file) = Temp::beside(path)?;
        // The mode at creation is cut by the umask, which could leave a key that its owner cannot read again.
        let written = file
            .set_permissions(fs::Permissions::from_mode(0o600))
            .and_then(|()| file.write_all(self.key.as_bytes()))
            .and_then(|()| file.sync_all());
        written.map_err(|error| IdentityError::io("write", path, &error))?;
        fs::hard_link(&temp.path, path).map_err(|error| IdentityError::io("link", path, &error))?;
        drop(temp);
        // The name must survive a crash too: a node that comes back with another key is another node.
        let dir = fs::File::open(directory_of(path)).and_then(|dir| dir.sync_all());
        dir.map_err(|error| IdentityError::io("sync", path, &error))
    }

    /// The public half.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        PublicKey(self.key.verifying_key().to_bytes())
    }

    /// The node's name.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.public_key().node_id()
    }

    /// Signs `message` for the purpose `domain`, a constant such as `"ron-dht provider record 1"`.
    ///
    /// # Panics
    /// If the domain is empty or longer than 255 bytes: domains are constants of the program.
    #[must_use]
    pub fn sign(&self, domain: &str, message: &[u8]) -> Signature {
        Signature(self.key.sign(&in_domain(domain, message)).to_bytes())
    }

    /// The secret as the TLS library reads it (PKCS #8), which signs handshakes with a copy of its own and wipes that,
    /// too. The message of a handshake says itself what it is for.
    pub(super) fn pkcs8(&self) -> Zeroizing<[u8; PKCS8_PREFIX.len() + KEY_BYTES]> {
        let mut pkcs8 = Zeroizing::new([0; PKCS8_PREFIX.len() + KEY_BYTES]);
        let (prefix, seed) = pkcs8.split_at_mut(PKCS8_PREFIX.len());
        prefix.copy_from_slice(&PKCS8_PREFIX);
        seed.copy_from_slice(self.key.as_bytes());
        pkcs8
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({:?})", self.node_id())
    }
}

/// The public half of an [`Identity`]: 32 bytes, whose hash is the node's name. Written as 64 lowercase hex digits, which
/// are not those of the name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; KEY_BYTES]);

impl PublicKey {
    /// The key with these bytes. Bytes that are no key verify nothing.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        PublicKey(bytes)
    }

    /// The key as it is hashed, signed and sent.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// The name of the node that holds the secret half.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        NodeId::of_public_key(&self.0)
    }

    /// Checks that the holder of the secret half signed `message` for the purpose `domain`. Strict: keys and
    /// signatures of small order, which would verify for many messages, are refused, so all nodes agree on the answer.
    ///
    /// # Errors
    /// [`SignatureError`].
    ///
    /// # Panics
    /// If the domain is empty or longer than 255 bytes, as for [`Identity::sign`].
    pub fn verify_strict(
        &self,
        domain: &str,
        message: &[u8],
        signature: &Signature,
    ) -> Result<(), SignatureError> {
        let signed = in_domain(domain, message);
        checked(&self.0, &signed, &signature.0, || self.prepare()?.check(&signed, signature))
    }

    /// This key for many signatures: what does not depend on the message is done once, which saves a tenth of each.
    ///
    /// # Errors
    /// [`SignatureError::BadKey`] if the bytes are no key.
    pub fn prepare(&self) -> Result<PreparedKey, SignatureError> {
        VerifyingKey::from_bytes(&self.0).map(PreparedKey).map_err(|_| SignatureError::BadKey)
    }

    /// Whether anyone can sign for this key, because it generates next to nothing.
    pub(super) fn has_small_order(&self) -> bool {
        let mut y = self.0;
        // The highest bit is the sign of the other coordinate.
        y[31] &= 0x7f;
        SMALL_ORDER.contains(&y)
    }
}

/// As 64 lowercase hex digits.
impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

impl FromStr for PublicKey {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        read_hex(text).map(PublicKey)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey(of {:?})", self.node_id())
    }
}

/// A [`PublicKey`] that has been looked at: see [`PublicKey::prepare`].
#[derive(Clone)]
pub struct PreparedKey(VerifyingKey);

impl PreparedKey {
    /// As [`PublicKey::verify_strict`].
    ///
    /// # Errors
    /// [`SignatureError::BadSignature`].
    ///
    /// # Panics
    /// If the domain is empty or longer than 255 bytes, as for [`Identity::sign`].
    pub fn verify_strict(
        &self,
        domain: &str,
        message: &[u8],
        signature: &Signature,
    ) -> Result<(), SignatureError> {
        let signed = in_domain(domain, message);
        checked(self.0.as_bytes(), &signed, &signature.0, || self.check(&signed, signature))
    }

    fn check(&self, signed: &[u8], signature: &Signature) -> Result<(), SignatureError> {
        let signature = RawSignature::from_bytes(&signature.0);
        self.0.verify_strict(signed, &signature).map_err(|_| SignatureError::BadSignature)
    }
}

#[cfg(not(feature = "sim"))]
fn checked(
    _: &[u8; KEY_BYTES],
    _: &[u8],
    _: &[u8; 64],
    check: impl FnOnce() -> Result<(), SignatureError>,
) -> Result<(), SignatureError> {
    check()
}

impl fmt::Debug for PreparedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PreparedKey(of {:?})", NodeId::of_public_key(self.0.as_bytes()))
    }
}

/// 64 bytes that only the holder of a key can make for a message and a domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Signature([u8; 64]);

impl Signature {
    /// The signature with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 64]) -> Self {
        Signature(bytes)
    }

    /// The signature as it is sent and stored.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 64] {
        &self.0
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signature(")?;
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// Why a signature proves nothing. Both are the sender's fault; they differ in what to distrust.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// The key is not a point of the curve: nothing it signs can ever verify.
    #[error("not an ed25519 public key")]
    BadKey,
    /// The key did not sign this message for this domain, or has small order.
    #[error("the signature does not match")]
    BadSignature,
}

/// Why there is no identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// Others can read or write the key. `chmod 600` it, and think about who may have had it.
    #[error("{}: mode is {mode:04o}, and a key is for its owner only (0600)", path.display())]
    Permissions {
        /// The key file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file is not a key, or not a whole one. It is left as it is.
    #[error("{}: {found} bytes, and a key has 32", path.display())]
    Length {
        /// The key file.
        path: PathBuf,
        /// Its length.
        found: u64,
    },
    /// The path is a symbolic link. Name the file itself.
    #[error("{}: refusing a symbolic link", path.display())]
    Symlink {
        /// The link.
        path: PathBuf,
    },
    /// The path is a directory, a pipe or a device.
    #[error("{}: not a regular file", path.display())]
    NotAFile {
        /// What was found.
        path: PathBuf,
    },
    /// The disk or the filesystem failed.
    #[error("{op} {}: {message}", path.display())]
    Io {
        /// What was attempted.
        op: &'static str,
        /// The key file.
        path: PathBuf,
        /// The kind of the underlying error.
        kind: io::ErrorKind,
        /// The text of the underlying error.
        message: String,
    },
    /// The operating system gave no random bytes.
    #[error("no randomness for a new key")]
    NoRandomness,
}

impl IdentityError {
    fn io(op: &'static str, path: &Path, error: &io::Error) -> Self {
        IdentityError::Io { op, path: path.to_owned(), kind: error.kind(), message: error.to_string() }
    }
}

impl Refusal for IdentityError {
    fn kind(&self) -> ErrorKind {
        match self {
            IdentityError::Io { .. } => ErrorKind::Disk,
            IdentityError::NoRandomness => ErrorKind::Bug,
            _ => ErrorKind::Caller,
        }
    }
}

/// `prefix ‖ length of the domain ‖ domain ‖ message`. The length keeps `("ab", "c")` and `("a", "bc")` apart.
fn in_domain(domain: &str, message: &[u8]) -> Vec<u8> {
    let length = u8::try_from(domain.len()).ok().filter(|length| *length > 0);
    let length = length.expect("a domain is a constant of 1 to 255 bytes");
    let mut signed = Vec::with_capacity(SIGNED_PREFIX.len() + 1 + domain.len() + message.len());
    signed.extend_from_slice(SIGNED_PREFIX);
    signed.push(length);
    signed.extend_from_slice(domain.as_bytes());
    signed.extend_from_slice(message);
    signed
}

/// From the source that TLS uses too.
fn fill_random(bytes: &mut [u8]) -> Result<(), IdentityError> {
    let random = rustls::crypto::aws_lc_rs::default_provider().secure_random;
    random.fill(bytes).map_err(|_| IdentityError::NoRandomness)
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A name that goes away again, whatever happens. The inode stays while another name has it.
struct Temp {
    path: PathBuf,
}

impl Temp {
    fn beside(path: &Path) -> Result<(Self, fs::File), IdentityError> {
        let mut tried = 0;
        loop {
            let mut tag = [0; 8];
            fill_random(&mut tag)?;
            let mut name = std::ffi::OsString::from(".");
            name.push(path.file_name().unwrap_or_default());
            name.push(format!(".{:016x}.new", u64::from_be_bytes(tag)));
            let temp = directory_of(path).join(name);
            let created = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temp);
            match created {
                Ok(file) => return Ok((Temp { path: temp }, file)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tried < TEMP_NAMES_TRIED => {
                    tried += 1;
                }
                Err(error) => return Err(IdentityError::io("create", path, &error)),
            }
        }
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(all(test, not(ron_loom)))]
#[allow(clippy::disallowed_methods, reason = "a test that joins its own threads")]
mod tests {
    use std::{os::unix::fs::symlink, sync::Barrier, thread};

    use super::*;

    fn dir() -> tempfile::TempDir {
        tempfile::tempdir().expect("a temporary directory")
    }

    #[test]
    fn a_public_key_is_read_as_it_is_written() {
        let key = Identity::from_seed(&[7; 32]).public_key();
        let text = key.to_string();
        assert_eq!((text.len(), text.parse()), (64, Ok(key)));
        assert_eq!(text[1..].parse::<PublicKey>(), Err(IdError::Length { found: 63 }));
        assert_ne!(text, key.node_id().to_string());
    }

    fn names_in(dir: &Path) -> Vec<std::ffi::OsString> {
        let entries = fs::read_dir(dir).expect("it exists");
        entries.map(|entry| entry.expect("it can be listed").file_name()).collect()
    }

    #[test]
    fn a_created_key_is_private_and_comes_back() {
        let dir = dir();
        let path = dir.path().join("node.key");
        let created = Identity::load_or_create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(fs::metadata(&path).unwrap().len(), 32);
        assert_eq!(names_in(dir.path()), ["node.key"], "no temporary file stays");
        assert_eq!(Identity::load_or_create(&path).unwrap().node_id(), created.node_id());
        assert_eq!(Identity::load(&path).unwrap().public_key(), created.public_key());
    }

    #[test]
    fn what_is_not_a_private_key_file_is_refused_by_name_and_left_alone() {
        let dir = dir();
        let path = dir.path().join("node.key");
        let check = |expected: IdentityError| {
            assert_eq!(Identity::load_or_create(&path).unwrap_err(), expected);
            assert!(expected.to_string().contains("node.key"), "{expected}");
            assert_eq!(expected.kind(), ErrorKind::Caller);
        };

        fs::write(&path, [7; 31]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        check(IdentityError::Length { path: path.clone(), found: 31 });
        assert_eq!(fs::read(&path).unwrap(), [7; 31]);

        fs::write(&path, [7; 32]).unwrap();
        for mode in [0o640, 0o604, 0o660, 0o610] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            check(IdentityError::Permissions { path: path.clone(), mode });
        }

        fs::rename(&path, dir.path().join("elsewhere")).unwrap();
        symlink(dir.path().join("elsewhere"), &path).unwrap();
        check(IdentityError::Symlink { path: path.clone() });
        fs::remove_file(&path).unwrap();
        symlink(dir.path().join("nothing here"), &path).unwrap();
        check(IdentityError::Symlink { path: path.clone() });
        assert!(!dir.path().join("nothing here").exists());

        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        check(IdentityError::NotAFile { path: path.clone() });
    }

    #[test]
    fn a_missing_directory_is_an_error_of_the_disk() {
        let error = Identity::load_or_create(dir().path().join("no/such/node.key")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Disk);
        assert!(matches!(error, IdentityError::Io { op: "create", .. }), "{error:?}");
    }

    /// Two daemons started at once on one directory must not each believe in a key of their own.
    #[test]
    fn racing_creators_agree_on_one_key() {
        for _ in 0..20 {
            let dir = dir();
            let path = dir.path().join("node.key");
            let start = Barrier::new(8);
            let ids = thread::scope(|scope| {
                let create = || {
                    start.wait();
                    Identity::load_or_create(&path).unwrap().node_id()
                };
                [(); 8].map(|()| scope.spawn(create)).map(|thread| thread.join().unwrap())
            });
            assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
            assert_eq!(names_in(dir.path()), ["node.key"]);
        }
    }

    #[test]
    fn a_signature_holds_for_its_key_message_and_domain_only() {
        let (ours, other) = (Identity::from_seed(&[1; 32]), Identity::from_seed(&[2; 32]));
        let signature = ours.sign("ab", b"c");
        let check =
            |key: PublicKey, domain: &str, message: &[u8]| key.verify_strict(domain, message, &signature);
        let bad = Err(SignatureError::BadSignature);
        assert_eq!(check(ours.public_key(), "ab", b"c"), Ok(()));
        assert_eq!(check(ours.public_key(), "a", b"bc"), bad);
        assert_eq!(check(ours.public_key(), "ab", b"d"), bad);
        assert_eq!(check(other.public_key(), "ab", b"c"), bad);
        let mut altered = *signature.as_bytes();
        altered[63] ^= 0x80;
        assert_eq!(ours.public_key().verify_strict("ab", b"c", &Signature::from_bytes(altered)), bad);
    }

    /// The identity point as key and R: the equation holds for every message unless small order is refused.
    #[test]
    fn a_key_of_small_order_signs_nothing() {
        let mut point = [0; 32];
        point[0] = 1;
        let mut signature = [0; 64];
        signature[0] = 1;
        let verdict =
            PublicKey::from_bytes(point).verify_strict("d", b"m", &Signature::from_bytes(signature));
        assert_eq!(verdict, Err(SignatureError::BadSignature));
        let off_curve = PublicKey::from_bytes([2; 32]).verify_strict("d", b"m", &Signature([0; 64]));
        assert_eq!(off_curve, Err(SignatureError::BadKey));
    }

    /// The list against the arithmetic: for what is on it, for what is next to that, and for keys of nodes.
    #[test]
    fn a_key_of_small_order_is_known_by_its_looks() {
        let check = |mut bytes: [u8; 32]| {
            for sign in [0, 0x80] {
                bytes[31] = bytes[31] & 0x7f | sign;
                let is_weak = VerifyingKey::from_bytes(&bytes).is_ok_and(|key| key.is_weak());
                assert_eq!(PublicKey(bytes).has_small_order(), is_weak, "{bytes:02x?}");
            }
        };
        SMALL_ORDER.into_iter().for_each(check);
        for first in 0..=0xff {
            check(little_endian(first, 0, 0));
            check(little_endian(first, 0xff, 0x7f));
            check(*Identity::from_seed(&[first; 32]).public_key().as_bytes());
        }
        let eighth = SMALL_ORDER[5..].iter().flat_map(|y| (0..256).map(move |bit| (y, bit)));
        for (y, bit) in eighth {
            let mut beside = *y;
            beside[bit / 8] ^= 1 << (bit % 8);
            check(beside);
        }
    }

    /// RFC 8032, section 7.1, test 1: the same key for the same seed as everyone else.
    #[test]
    fn the_public_key_is_the_one_of_the_standard() {
        let hex = data_encoding::HEXLOWER;
        let seed = hex.decode(b"9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60").unwrap();
        let identity = Identity::from_seed(&seed.try_into().unwrap());
        assert_eq!(
            hex.encode(identity.public_key().as_bytes()),
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
        );
        assert_eq!(identity.node_id(), NodeId::of_public_key(identity.public_key().as_bytes()));
    }

    #[test]
    fn nothing_prints_the_secret() {
        let identity = Identity::from_seed(&[0xab; 32]);
        for text in [format!("{identity:?}"), format!("{identity:#?}")] {
            assert!(text.len() < 40 && !text.contains("abab") && !text.contains("171"), "{text}");
        }
    }
}
