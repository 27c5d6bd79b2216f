//! Whom to try first after a restart: a small file of contacts, written whole or not at all.
//!
//! It is a cache. Whatever is wrong with it, the node starts without it and asks its seeds instead; the fault is told
//! so that somebody can look at the disk.

use std::path::Path;

use minicbor::Decoder;
use ron_core::{
    disk::{Access, Disk, DiskError, make_dirs, replace},
    net::cbor,
};

use crate::logic::{
    Contact,
    wire::{read_contacts, write_contacts},
};

/// Contacts in the file. A full table of a network of a million nodes has about four hundred.
pub(crate) const CONTACTS_FILE_MAX: usize = 1024;

/// What the file begins with: what it is, and the version.
const MAGIC: &[u8; 8] = b"RONDHTC1";

/// Bytes of the magic and the sum.
const HEAD: usize = 8 + 32;

/// Bytes of the longest file: a contact with eight addresses of IPv6 has 191.
const FILE_BYTES_MAX: usize = HEAD + 8 + CONTACTS_FILE_MAX * 200;

/// What is wrong with a file of contacts. None of it keeps a node from starting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ContactsFault {
    /// The disk failed.
    #[error("the disk failed")]
    Disk(#[source] DiskError),
    /// It is not such a file, or one of a later version.
    #[error("not a file of contacts")]
    Foreign,
    /// Longer than such a file can be.
    #[error("{bytes} bytes are too many")]
    TooLarge {
        /// How long it is.
        bytes: u64,
    },
    /// Its sum does not match: it was cut off or changed.
    #[error("the sum does not match")]
    Damaged,
    /// The sum matches, and there are no contacts in it. Another program wrote it.
    #[error("no contacts in it")]
    Malformed,
}

/// Puts the first [`CONTACTS_FILE_MAX`] of `contacts` into the file at `path`. After a crash it is the old one or the
/// new one. Blocks on the disk.
///
/// # Errors
/// Any failure of the disk.
pub(crate) fn save_contacts(disk: &dyn Disk, path: &Path, contacts: &[Contact]) -> Result<(), DiskError> {
    let contacts = &contacts[..contacts.len().min(CONTACTS_FILE_MAX)];
    let body = cbor::encode(contacts.len() * 64, |cbor| write_contacts(cbor, contacts));
    let bytes = [&MAGIC[..], blake3::hash(&body).as_bytes(), &body].concat();
    match replace(disk, path, &bytes) {
        Err(DiskError::NotFound { .. }) => {
            make_dirs(disk, path.parent().unwrap_or(Path::new("")))?;
            replace(disk, path, &bytes)
        }
        other => other,
    }
}

/// The contacts in the file at `path`, and what is wrong with it if something is. No file is nothing wrong. Blocks on
/// the disk.
pub(crate) fn load_contacts(disk: &dyn Disk, path: &Path) -> (Vec<Contact>, Option<ContactsFault>) {
    match read(disk, path) {
        Ok(contacts) => (contacts, None),
        Err(ContactsFault::Disk(DiskError::NotFound { .. })) => (Vec::new(), None),
        Err(fault) => (Vec::new(), Some(fault)),
    }
}

fn read(disk: &dyn Disk, path: &Path) -> Result<Vec<Contact>, ContactsFault> {
    let file = disk.open(path, Access::Read).map_err(ContactsFault::Disk)?;
    let bytes = file.len().map_err(ContactsFault::Disk)?;
    let len = usize::try_from(bytes).ok().filter(|len| *len <= FILE_BYTES_MAX);
    let mut content = vec![0; len.ok_or(ContactsFault::TooLarge { bytes })?];
    let read = file.read_at(0, &mut content).map_err(ContactsFault::Disk)?;
    content.truncate(read);
    let (magic, rest) = content.split_first_chunk().ok_or(ContactsFault::Foreign)?;
    if magic != MAGIC {
        return Err(ContactsFault::Foreign);
    }
    let (sum, body) = rest.split_first_chunk().ok_or(ContactsFault::Damaged)?;
    if blake3::hash(body).as_bytes() != sum {
        return Err(ContactsFault::Damaged);
    }
    let mut cbor = Decoder::new(body);
    let contacts = read_contacts(&mut cbor, CONTACTS_FILE_MAX).map_err(|_| ContactsFault::Malformed)?;
    if cbor.position() != body.len() {
        return Err(ContactsFault::Malformed);
    }
    Ok(contacts)
}

#[cfg(test)]
mod tests {
    use ron_core::{
        NodeId,
        sim::{CrashStyle, SimDisk},
    };

    use super::*;

    const PATH: &str = "data/dht/contacts";

    fn contacts(count: u32) -> Vec<Contact> {
        let contact = |number: u32| Contact {
            id: NodeId::of_public_key(blake3::hash(&number.to_be_bytes()).as_bytes()),
            addrs: (0..8).map(|at| format!("[2606::{number:x}]:{}", 4000 + at).parse().unwrap()).collect(),
        };
        (0..count).map(contact).collect()
    }

    fn load(disk: &SimDisk) -> (Vec<Contact>, Option<ContactsFault>) {
        load_contacts(disk, Path::new(PATH))
    }

    #[test]
    fn contacts_come_back_after_a_crash() {
        let disk = SimDisk::new();
        assert_eq!(load(&disk), (Vec::new(), None));
        save_contacts(&disk, Path::new(PATH), &contacts(30)).unwrap();
        disk.restart(CrashStyle::LoseUnsynced);
        assert_eq!(load(&disk), (contacts(30), None));
        save_contacts(&disk, Path::new(PATH), &contacts(2000)).unwrap();
        let (loaded, fault) = load(&disk);
        assert_eq!((loaded, fault), (contacts(CONTACTS_FILE_MAX as u32), None));
        assert!(disk.bytes(PATH).unwrap().len() <= FILE_BYTES_MAX);
    }

    #[test]
    fn a_crash_leaves_the_old_ones_or_the_new_ones() {
        let disk = SimDisk::new();
        save_contacts(&disk, Path::new(PATH), &contacts(3)).unwrap();
        let before = disk.calls();
        let whole = disk.fork();
        save_contacts(&whole, Path::new(PATH), &contacts(4)).unwrap();
        for call in before + 1..=whole.calls() {
            for style in [CrashStyle::LoseUnsynced, CrashStyle::KeepAll, CrashStyle::Scramble { seed: call }]
            {
                let disk = disk.fork();
                disk.crash_at_call(call);
                let _ = save_contacts(&disk, Path::new(PATH), &contacts(4));
                disk.restart(style);
                let (loaded, fault) = load(&disk);
                assert!(
                    fault.is_none() && (loaded == contacts(3) || loaded == contacts(4)),
                    "{call} {style:?}"
                );
            }
        }
    }

    #[test]
    fn a_damaged_file_is_told_and_empty() {
        let disk = SimDisk::new();
        save_contacts(&disk, Path::new(PATH), &contacts(2)).unwrap();
        let good = disk.bytes(PATH).unwrap();
        let fault_of = |bytes: &[u8]| {
            let disk = SimDisk::new();
            disk.put(PATH, bytes);
            let (loaded, fault) = load(&disk);
            assert!(loaded.is_empty());
            fault.unwrap()
        };
        for at in 0..good.len() {
            let mut changed = good.clone();
            changed[at] ^= 4;
            let expected = if at < 8 { ContactsFault::Foreign } else { ContactsFault::Damaged };
            assert_eq!(fault_of(&changed), expected, "byte {at}");
        }
        for len in 0..good.len() {
            let expected = if len < 8 { ContactsFault::Foreign } else { ContactsFault::Damaged };
            assert_eq!(fault_of(&good[..len]), expected, "{len} bytes");
        }
        let bytes = FILE_BYTES_MAX as u64 + 1;
        assert_eq!(fault_of(&vec![0; FILE_BYTES_MAX + 1]), ContactsFault::TooLarge { bytes });
        let sealed = |body: &[u8]| [&MAGIC[..], blake3::hash(body).as_bytes(), body].concat();
        assert_eq!(fault_of(&sealed(b"\x9f\xff")), ContactsFault::Malformed);
        assert_eq!(fault_of(&sealed(b"\x80\x00")), ContactsFault::Malformed);

        disk.fail_read(1);
        assert!(matches!(load(&disk), (none, Some(ContactsFault::Disk(_))) if none.is_empty()));
    }
}
