//! What the fuzzer and the replay of its corpus both run.

use ron_index::{
    Key,
    logic::key::{KEY_BYTES_MAX, NAME_BYTES_MAX, peer_id},
};

/// The part of a path that should be a key. What is taken for one has one spelling that is read as the same key again;
/// content is only what its hash says; and a name can be nothing else.
pub(crate) fn b3_path(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = peer_id(text);
    let of_content = Key::content(text);
    let Ok(key) = text.parse::<Key>() else {
        return assert!(of_content.is_err(), "{text:?} is content and no key");
    };
    assert!((1..=KEY_BYTES_MAX).contains(&text.len()));
    assert_eq!(key.to_string().parse::<Key>().as_ref(), Ok(&key), "{text:?}");
    match &key {
        Key::Name(name) => {
            assert!(name.as_str() == text && text.len() <= NAME_BYTES_MAX && !text.starts_with("b3:"));
            assert!(
                text.bytes().all(|byte| byte.is_ascii_graphic()) && !text.split('/').any(|part| part == "..")
            );
        }
        Key::Content(id) => {
            assert!(of_content == Ok(key.clone()));
            assert!(text.starts_with("b3:") == (text == id.to_string()));
        }
        Key::Foreign(hash) => assert!(of_content == Ok(key.clone()) && hash.content_id().is_none()),
    }
}
