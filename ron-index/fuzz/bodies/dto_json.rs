//! What the fuzzer and the replay of its corpus both run.

use ron_index::http::dto::{PURGE_KEYS_MAX, PurgeDto};
use serde_json::Value;

/// A body that should say what to forget. Whatever it is, it is read or refused; what is read is what plain JSON says, with
/// no field that is not known and no more keys than may be.
pub(crate) fn dto_json(data: &[u8]) {
    let Ok(keys) = PurgeDto::read(data) else { return };
    let value: Value = serde_json::from_slice(data).expect("it was read");
    let fields = value.as_object().expect("it is an object");
    assert!(fields.keys().all(|name| name == "keys" || name == "all"));
    match keys {
        None => assert_eq!(fields.get("all"), Some(&Value::Bool(true))),
        Some(keys) => {
            let texts = fields["keys"].as_array().expect("they are a list");
            assert!(keys.len() == texts.len() && (1..=PURGE_KEYS_MAX).contains(&keys.len()));
            for (key, text) in keys.iter().zip(texts) {
                assert_eq!(text.as_str().and_then(|text| text.parse().ok()).as_ref(), Some(key));
            }
        }
    }
}
