//! What the fuzzer and the replay of its corpus both run.

use ron_storage::logic::{
    claims::{Claim, Claims},
    manifest::Manifest,
    words,
};

/// What another node may say about claims: a claim, a manifest, a message. Whatever is read is kept or written again as it was,
/// and nothing that its owner did not sign is believed.
pub(crate) fn claims(data: &[u8]) {
    if let Ok(claim) = Claim::decode(data) {
        assert_eq!(&claim.encoded()[..], data);
        let mut known = Claims::default();
        if let Ok(verified) = claim.verify() {
            known.merge(verified.clone(), 0).expect("there is room for one");
            known.merge(verified, 1).expect("it is known");
            assert_eq!(known.len(), 1);
        }
    }
    if let Ok(manifest) = Manifest::decode(data) {
        assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest.clone()));
        let (layout, mut end) = (manifest.layout(), 0);
        for stripe in layout.stripes().take(100) {
            assert!(stripe.start == end && stripe.end <= layout.shard_len());
            end = stripe.end;
            let cell = layout.cell(&stripe, u64::from(manifest.data) - 1);
            assert!(cell.start <= cell.end && cell.end <= manifest.len);
        }
    }
    if let Ok((kind, items)) = words::read(data) {
        assert_eq!(words::read(&words::write(kind, &items)), Ok((kind, items.clone())));
        for item in &items {
            let _ = words::read_id(item);
            if let Ok((claim, manifest)) = words::read_told(item) {
                assert!(words::read_told(&words::write_told(&claim, manifest.as_ref())).is_ok());
            }
        }
    }
}
