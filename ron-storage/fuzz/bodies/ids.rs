//! What the fuzzer and the replay of its corpus both run.

use ron_core::ContentId;

/// The part of a path that should be a name. What is taken for one is written again as it was read: a name has one spelling
/// in each form, and no other text reaches the store.
pub(crate) fn ids(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(id) = ContentId::parse_any(text) else { return };
    assert!(text == id.to_string() || text == id.to_cid());
    assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b':'));
    assert_eq!(ContentId::parse_any(&id.to_string()), Ok(id));
    assert_eq!(ContentId::parse_any(&id.to_cid()), Ok(id));
}
