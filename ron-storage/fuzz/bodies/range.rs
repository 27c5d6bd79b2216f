//! What the fuzzer and the replay of its corpus both run.

use ron_storage::logic::range::{Conditions, RANGES_MAX, Selection, parse, select};

/// The first eight bytes are the size of the object, the rest is a header. Whatever it says, what is answered lies inside
/// the object, apart from each other, and is not empty; and nothing takes long.
pub(crate) fn range(data: &[u8]) {
    let Some((size, header)) = data.split_first_chunk::<8>() else { return };
    let size = u64::from_le_bytes(*size);
    let conditions = Conditions { if_match: &[header], if_none_match: &[header], if_range: Some(header) };
    let _ = conditions.judge("\"b3:0\"");
    let Ok(Some(asked)) = parse(header) else { return };
    assert!(!asked.is_empty() && asked.len() <= RANGES_MAX);
    let mut ranges = match select(&asked, size) {
        Ok(Selection::One(range)) => vec![range],
        Ok(Selection::Many(ranges)) => ranges,
        Ok(Selection::Whole) | Err(_) => return,
    };
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.iter().all(|range| range.start < range.end && range.end <= size));
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
}
