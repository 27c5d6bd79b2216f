//! What the fuzzer and the replay of its corpus both run.

use std::iter::once;

use bytes::BytesMut;
use ron_core::ContentId;
use ron_storage::logic::{
    proof::{GroupSet, ProofReader, proof_header, proof_piece},
    tree::{GROUP, Shape, Tree},
};

/// What a reader takes at most: a lie about the size must not cost memory.
const SIZE_MAX: u64 = 1 << 40;

/// The first byte chooses an object, the second what is asked of it, the third the size of the pieces in which the proof
/// comes; the rest says where bits are flipped in a proof that was right (two bytes of place and one of bits, three times),
/// and is read as a proof of its own too. Whatever is handed out is the object's, in order, and once.
pub(crate) fn proof(data: &[u8]) {
    let [object, asked, piece, rest @ ..] = data else { return };
    let len = usize::from(*object) * 1500;
    let content: Vec<u8> = (0..len).map(|n| (n * 31 + n / 256) as u8).collect();
    let tree = Tree::of(&content);
    let size = tree.shape.size();
    let start = u64::from(*asked) * size / 300;
    let wanted = GroupSet::covering(tree.shape, once(start..size));
    if wanted.is_empty() {
        return;
    }
    let mut proof = proof_header(tree.shape).to_vec();
    let groups = tree.shape.groups();
    let piece_of = proof_piece(&tree.id, tree.shape, &wanted, 0..groups, &tree.nodes[..], &content);
    proof.extend_from_slice(&piece_of.expect("it is right"));
    assert_eq!(proof.len() as u64, wanted.proof_len(tree.shape));
    let mut flipped = false;
    for flip in rest.chunks_exact(3).take(3) {
        let place = usize::from(u16::from_le_bytes([flip[0], flip[1]])) * 7 % proof.len();
        proof[place] ^= flip[2];
        flipped |= flip[2] != 0;
    }
    let reader = || ProofReader::ranges(tree.id, once(start..size.max(start + 1)), SIZE_MAX);
    let read = |proof: &[u8]| take(reader(), proof, usize::from(*piece) * 100 + 1, &content);
    let whole = read(&proof);
    assert!(whole || flipped, "a proof that is right was refused");
    read(rest);
    let _ = take(ProofReader::whole(ContentId::of(rest), SIZE_MAX), rest, 64, rest);
    let with_last = ProofReader::ranges_and_last(tree.id, once(0..u64::from(*asked) + 1), SIZE_MAX);
    let _ = take(with_last, rest, 64, &content);
    if let Some((claimed, _)) = rest.split_first_chunk::<8>() {
        forms(u64::from_le_bytes(*claimed));
    }
}

/// Reads a proof in pieces; whether all of it was right.
fn take(mut reader: ProofReader, proof: &[u8], piece: usize, content: &[u8]) -> bool {
    let (mut arrived, mut next) = (BytesMut::new(), 0);
    for piece in proof.chunks(piece) {
        arrived.extend_from_slice(piece);
        loop {
            match reader.next(&mut arrived) {
                Ok(Some(group)) => {
                    assert!(group.offset >= next && group.bytes.len() as u64 <= GROUP);
                    let at = usize::try_from(group.offset).expect("it is inside");
                    assert!(content[at..at + group.bytes.len()] == group.bytes);
                    next = group.offset + group.bytes.len() as u64;
                }
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(reader.next(&mut arrived), Err(error));
                    return false;
                }
            }
        }
        assert!(arrived.len() as u64 <= GROUP + piece.len() as u64);
    }
    reader.finish(&arrived).is_ok()
}

/// Sizes that somebody claims have a form, however large.
fn forms(size: u64) {
    let shape = Shape::of(size);
    let last = shape.groups() - 1;
    assert_eq!(shape.group(last).end, size);
    let spans = shape.spans(last..last + 1);
    assert!(spans.len() <= 64 && spans.iter().all(|span| span.end <= shape.outboard_len()));
    let wanted = GroupSet::covering(shape, once(size.saturating_sub(1)..size));
    assert!(wanted.proof_len(shape) <= 8 + GROUP + 64 * 64);
}
