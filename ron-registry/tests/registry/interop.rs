//! Everybody else's transparency tooling reads our log, and we read theirs: trees, tiles, proofs, notes and checkpoints
//! of random logs, checked against `tlog_tiles`, `signed_note` and `ct-merkle` in both directions.

use ct_merkle::{ConsistencyProof, InclusionProof, RootHash, mem_backed_tree::MemoryBackedTree};
use ron_registry::logic::{
    checkpoint::{Checkpoint, LogTrust, ProofFile},
    merkle::{TreeHash, verify_consistency, verify_inclusion},
    note::{KeyKind, Note, NoteSigner, NoteVerifier},
    tiles::{Prover, Tile, TileSource, Tree},
};
use sha2::Sha256;
use signed_note::Signer as _;
use tlog_tiles::{Hash, HashReader, TileHashReader, TileReader};

const ORIGIN: &str = "example.com/registry";

/// A log of random entries, as each of the three keeps it.
struct Logs {
    entries: Vec<Vec<u8>>,
    ours: Tree,
    /// All hashes in the order in which `tlog_tiles` stores them.
    stored: Vec<Hash>,
    memory: MemoryBackedTree<Sha256, Vec<u8>>,
}

struct Stored<'a>(&'a [Hash]);

impl HashReader for Stored<'_> {
    fn read_hashes(&self, indexes: &[u64]) -> Result<Vec<Hash>, tlog_tiles::Error> {
        Ok(indexes.iter().map(|at| self.0[*at as usize]).collect())
    }
}

/// Our tiles, as their client fetches them.
struct Served<'a>(&'a Tree);

impl TileReader for Served<'_> {
    fn height(&self) -> u8 {
        8
    }

    fn read_tiles(&self, tiles: &[tlog_tiles::Tile]) -> Result<Vec<Vec<u8>>, tlog_tiles::Error> {
        let read = |tile: &tlog_tiles::Tile| {
            // They write the height into the path, as Go's checksum database does; C2SP fixes it.
            let path = tile.path().replacen("tile/8/", "tile/", 1);
            self.0.tile(path.parse().unwrap()).unwrap().to_vec()
        };
        Ok(tiles.iter().map(read).collect())
    }

    fn save_tiles(&self, _: &[tlog_tiles::Tile], _: &[Vec<u8>]) {}
}

impl Logs {
    fn new(rng: &mut fastrand::Rng, size: u64) -> Self {
        let mut logs = Logs {
            entries: Vec::new(),
            ours: Tree::new(),
            stored: Vec::new(),
            memory: MemoryBackedTree::new(),
        };
        for at in 0..size {
            let mut entry = vec![0; rng.usize(0..300)];
            rng.fill(&mut entry);
            logs.ours.push(TreeHash::of_leaf(&entry));
            let more = tlog_tiles::stored_hashes(at, &entry, &Stored(&logs.stored)).unwrap();
            logs.stored.extend(more);
            logs.memory.push(entry.clone());
            logs.entries.push(entry);
        }
        logs
    }

    /// The root of the first `size` entries, on which all agree.
    fn root(&self, size: u64) -> TreeHash {
        let ours = Prover::new(&self.ours, size).root().unwrap();
        assert_eq!(theirs(&ours), tlog_tiles::tree_hash(size, &Stored(&self.stored)).unwrap());
        ours
    }
}

fn theirs(hash: &TreeHash) -> Hash {
    Hash(*hash.as_bytes())
}

fn all_theirs(hashes: &[TreeHash]) -> Vec<Hash> {
    hashes.iter().map(theirs).collect()
}

fn all_ours(hashes: &[Hash]) -> Vec<TreeHash> {
    hashes.iter().map(|hash| TreeHash::from_bytes(hash.0)).collect()
}

fn bytes(hashes: &[TreeHash]) -> Vec<u8> {
    hashes.iter().flat_map(|hash| *hash.as_bytes()).collect()
}

fn for_random_logs(check: impl Fn(&mut fastrand::Rng, Logs, u64)) {
    let mut rng = fastrand::Rng::with_seed(0x7472_6565);
    let sizes = [1, 2, 3, 255, 256, 257, 511, 513, 1000];
    for size in sizes.into_iter().chain(std::iter::repeat_with(|| 0).take(8)) {
        let size = if size == 0 { rng.u64(1..1500) } else { size };
        let logs = Logs::new(&mut rng, size);
        check(&mut rng, logs, size);
    }
}

#[test]
fn inclusion_proofs_hold_there_and_theirs_here() {
    for_random_logs(|rng, logs, size| {
        assert_eq!(logs.ours.root().as_bytes()[..], logs.memory.root().as_bytes()[..]);
        for _ in 0..20 {
            let size = rng.u64(1..=size);
            let index = rng.u64(..size);
            let (root, entry) = (logs.root(size), &logs.entries[index as usize]);
            let leaf = TreeHash::of_leaf(entry);
            assert_eq!(theirs(&leaf), tlog_tiles::record_hash(entry));

            let proof = Prover::new(&logs.ours, size).inclusion(index).unwrap();
            let check = |proof: Vec<Hash>| {
                tlog_tiles::check_record(&proof, size, theirs(&root), index, theirs(&leaf))
            };
            check(all_theirs(&proof)).unwrap();
            let digest = sha2::digest::Output::<Sha256>::from(*root.as_bytes());
            let ct_root = RootHash::<Sha256>::new(digest, size);
            let ct_proof = InclusionProof::try_from_bytes(bytes(&proof)).unwrap();
            ct_root.verify_inclusion(entry, index, &ct_proof).unwrap();

            let back = tlog_tiles::prove_record(size, index, &Stored(&logs.stored)).unwrap();
            verify_inclusion(&leaf, index, &all_ours(&back), size, &root).unwrap();
            if !proof.is_empty() {
                // Both find the same fault.
                let mut forged = proof.clone();
                forged[rng.usize(..proof.len())] = TreeHash::of_nothing();
                assert!(check(all_theirs(&forged)).is_err());
                assert!(verify_inclusion(&leaf, index, &forged, size, &root).is_err());
            }
        }
        let index = rng.u64(..size);
        let proof = logs.memory.prove_inclusion(index as usize);
        let hashes: Vec<_> =
            proof.as_bytes().chunks(32).map(|hash| TreeHash::from_bytes(hash.try_into().unwrap())).collect();
        let leaf = TreeHash::of_leaf(&logs.entries[index as usize]);
        verify_inclusion(&leaf, index, &hashes, size, &logs.ours.root()).unwrap();
    });
}

#[test]
fn consistency_proofs_hold_there_and_theirs_here() {
    for_random_logs(|rng, logs, size| {
        for _ in 0..20 {
            let new = rng.u64(1..=size);
            let old = rng.u64(1..=new);
            let (new_root, old_root) = (logs.root(new), logs.root(old));
            let proof = Prover::new(&logs.ours, new).consistency(old).unwrap();
            let check = |proof: Vec<Hash>| {
                tlog_tiles::check_tree(&proof, new, theirs(&new_root), old, theirs(&old_root))
            };
            check(all_theirs(&proof)).unwrap();
            let root = |hash: &TreeHash, size| {
                RootHash::<Sha256>::new(sha2::digest::Output::<Sha256>::from(*hash.as_bytes()), size)
            };
            let ct_proof = ConsistencyProof::try_from_bytes(bytes(&proof)).unwrap();
            root(&new_root, new).verify_consistency(&root(&old_root, old), &ct_proof).unwrap();

            let back = tlog_tiles::prove_tree(new, old, &Stored(&logs.stored)).unwrap();
            verify_consistency((old, &old_root), (new, &new_root), &all_ours(&back)).unwrap();
            if !proof.is_empty() {
                let mut forged = proof.clone();
                forged[rng.usize(..proof.len())] = TreeHash::of_nothing();
                assert!(check(all_theirs(&forged)).is_err());
                assert!(verify_consistency((old, &old_root), (new, &new_root), &forged).is_err());
            }
        }
        if size > 1 {
            let more = rng.usize(1..size as usize);
            let proof = logs.memory.prove_consistency(more);
            let hashes: Vec<_> = proof
                .as_bytes()
                .chunks(32)
                .map(|hash| TreeHash::from_bytes(hash.try_into().unwrap()))
                .collect();
            let old = size - more as u64;
            verify_consistency((old, &logs.root(old)), (size, &logs.root(size)), &hashes).unwrap();
        }
    });
}

/// Their client authenticates our tiles against the root, and makes proofs out of nothing else.
#[test]
fn their_client_reads_our_tiles() {
    for_random_logs(|rng, logs, size| {
        for tile in tlog_tiles::Tile::new_tiles(8, 0, size) {
            let path = tile.path().replacen("tile/8/", "tile/", 1);
            let ours: Tile = path.parse().unwrap();
            assert_eq!(ours.to_string(), path);
            let data = tile.read_data(&Stored(&logs.stored)).unwrap();
            assert_eq!(logs.ours.tile(ours).unwrap()[..], data);
        }
        let served = Served(&logs.ours);
        let reader = TileHashReader::new(size, theirs(&logs.ours.root()), &served);
        for _ in 0..5 {
            let index = rng.u64(..size);
            let proof = tlog_tiles::prove_record(size, index, &reader).unwrap();
            let leaf = TreeHash::of_leaf(&logs.entries[index as usize]);
            verify_inclusion(&leaf, index, &all_ours(&proof), size, &logs.ours.root()).unwrap();
        }
    });
}

/// After pruning their client still proves what is left, since it fetches the same tiles.
#[test]
fn their_client_reads_what_pruning_left() {
    let mut logs = Logs::new(&mut fastrand::Rng::with_seed(7), 1400);
    logs.ours.prune(900);
    let served = Served(&logs.ours);
    let reader = TileHashReader::new(1400, theirs(&logs.ours.root()), &served);
    for index in [900, 901, 1023, 1024, 1399] {
        let proof = tlog_tiles::prove_record(1400, index, &reader).unwrap();
        let leaf = TreeHash::of_leaf(&logs.entries[index as usize]);
        verify_inclusion(&leaf, index, &all_ours(&proof), 1400, &logs.ours.root()).unwrap();
    }
    let proof = tlog_tiles::prove_tree(1400, 1000, &reader).unwrap();
    let old = Prover::new(&logs.ours, 1000).root().unwrap();
    verify_consistency((1000, &old), (1400, &logs.ours.root()), &all_ours(&proof)).unwrap();
}

/// A key of `signed_note`, as it writes them: `PRIVATE+KEY+name+id+base64(type, seed)`.
fn their_signer(ours: &NoteSigner, seed: &[u8; 32]) -> signed_note::StandardSigner {
    let key = data_encoding::BASE64.encode(&[&[1], &seed[..]].concat());
    let verifier = ours.verifier();
    let text = format!("PRIVATE+KEY+{}+{:08x}+{key}", verifier.name(), verifier.id());
    signed_note::StandardSigner::new(&text).unwrap()
}

fn their_verifiers(ours: &NoteVerifier) -> signed_note::VerifierList {
    let verifier = signed_note::StandardVerifier::new(&ours.to_string()).unwrap();
    signed_note::VerifierList::new(vec![Box::new(verifier)])
}

#[test]
fn notes_and_checkpoints_hold_there_and_theirs_here() {
    let mut rng = fastrand::Rng::with_seed(0x6e6f_7465);
    for _ in 0..30 {
        let mut seed = [0; 32];
        rng.fill(&mut seed);
        let log = NoteSigner::from_seed(ORIGIN, KeyKind::Ed25519, &seed).unwrap();
        let size = rng.u64(1..400);
        let logs = Logs::new(&mut rng, size);
        let checkpoint = Checkpoint { origin: ORIGIN.into(), size, root: logs.ours.root() };

        // Ours there, with a cosignature that they do not know and so ignore.
        let mut note = checkpoint.sign(&log).unwrap();
        let witness = NoteSigner::from_seed("w.example/1", KeyKind::Cosignature, &[9; 32]).unwrap();
        note.add(witness.sign(note.text(), rng.u64(..1 << 40))).unwrap();
        let read = signed_note::Note::from_bytes(note.to_string().as_bytes()).unwrap();
        assert_eq!(read.text(), note.text().as_bytes());
        let (known, unknown) = read.verify(&their_verifiers(log.verifier())).unwrap();
        assert_eq!((known.len(), unknown.len()), (1, 1));
        assert_eq!(read.to_bytes(), note.to_string().as_bytes());
        let text = tlog_tiles::Checkpoint::from_bytes(read.text()).unwrap();
        assert_eq!((text.origin(), text.size(), text.hash()), (ORIGIN, size, &theirs(&checkpoint.root)));

        // Theirs here.
        let signer = their_signer(&log, &seed);
        assert_eq!(signer.key_id(), log.verifier().id());
        let text = tlog_tiles::Checkpoint::new(ORIGIN, size, theirs(&checkpoint.root), "").unwrap();
        let mut written = signed_note::Note::new(&text.to_bytes(), &[]).unwrap();
        written.add_sigs(&[&signer]).unwrap();
        let note = Note::parse(&written.to_bytes()).unwrap();
        let trust = LogTrust::new(log.verifier().clone());
        assert_eq!(trust.open(&note), Ok(checkpoint));

        // A proof file of theirs: their path, their note, in the form of C2SP.
        let index = rng.u64(..size);
        let path = tlog_tiles::prove_record(size, index, &Stored(&logs.stored)).unwrap();
        let lines: String = path.iter().map(|hash| format!("{hash}\n")).collect();
        let note = String::from_utf8(written.to_bytes()).unwrap();
        let file = format!("c2sp.org/tlog-proof@v1\nindex {index}\n{lines}\n{note}");
        let proof = ProofFile::parse(file.as_bytes()).unwrap();
        assert_eq!(proof.to_string(), file);
        proof.verify(&logs.entries[index as usize], &trust).unwrap();
    }
}

#[test]
fn both_refuse_a_signature_that_does_not_hold() {
    let log = NoteSigner::from_seed(ORIGIN, KeyKind::Ed25519, &[3; 32]).unwrap();
    let checkpoint = Checkpoint { origin: ORIGIN.into(), size: 5, root: TreeHash::of_nothing() };
    let text = checkpoint.sign(&log).unwrap().to_string().replace("\n5\n", "\n6\n");
    let read = signed_note::Note::from_bytes(text.as_bytes()).unwrap();
    assert!(read.verify(&their_verifiers(log.verifier())).is_err());
    let note = Note::parse(text.as_bytes()).unwrap();
    assert!(LogTrust::new(log.verifier().clone()).open(&note).is_err());
}
