//! What this node says to others about claims, and what it lets itself be told.

use std::sync::Arc;

use bytes::Bytes;
use ron_core::{ContentId, Deadline, NodeId, net::BoxFuture};

use super::{Heard, Shared};
use crate::{
    claims::{Claim, ClaimError, Manifest, Merged, Standing, Word},
    logic::{
        inventory::answer,
        wire::{OFFER_CLAIM_BYTES_MAX, read_question, write_parts},
        words::{
            self, IS_DRAINING, IS_DURABLE, Kind, NOT_HERE, NOT_NOW, PROMISED, TOLD_MAX, read_id, read_told,
            write_told,
        },
    },
    peers::{Decline, Judge, Offer},
};

/// Bytes of an answer: what a call carries back.
const ANSWER_BYTES_MAX: usize = 900 << 10;

/// Why something is not taken that is about to be deleted here.
const GOING: &str = "it is about to be deleted here";

pub(super) struct Telling(pub(super) Arc<Shared>);

/// How this node describes itself.
pub(super) fn flags(shared: &Shared) -> u8 {
    let durable = if shared.store.is_durable() { IS_DURABLE } else { 0 };
    let draining = if shared.is_draining() { IS_DRAINING } else { 0 };
    durable | draining
}

/// The claims on an object as an offer of one of its pieces carries them, as many as fit: first those that say why it should be taken.
pub(super) fn told(shared: &Shared, object: &ContentId, piece: &ContentId) -> Bytes {
    let mut items = Vec::new();
    let mut len = 64;
    let mut about = shared.store.book().about(object);
    about.sort_by_key(|(claim, manifest)| {
        let is_shard = manifest.as_ref().is_some_and(|manifest| manifest.shards.contains(piece));
        (claim.word.is_tombstone(), !(claim.object == *piece || is_shard))
    });
    for (claim, manifest) in about {
        let item = write_told(&claim, manifest.as_ref());
        len += item.len() + 8;
        if len > OFFER_CLAIM_BYTES_MAX {
            break;
        }
        items.push(item);
    }
    words::write(Kind::Tell, &items)
}

/// Takes in claims that another node told, as far as they are good. Says whether something was new.
pub(super) async fn hear(shared: &Shared, items: &[Bytes]) -> bool {
    let mut is_new = false;
    for item in items.iter().take(TOLD_MAX) {
        is_new |= matches!(hear_one(shared, item).await, Ok((_, Merged::New)));
    }
    is_new
}

/// Takes in one claim; says which object it is about.
async fn hear_one(shared: &Shared, item: &[u8]) -> Result<(ContentId, Merged), String> {
    let (claim, manifest) = good(shared, item)?;
    let object = claim.object;
    let verified = claim.verify().map_err(|error| error.to_string())?;
    let book = shared.store.book();
    let merged = book
        .merge(verified, manifest, book.unix_now(), Deadline::after(shared.settings.load().repair_timeout))
        .await;
    Ok((object, merged.map_err(|error| error.to_string())?))
}

/// Reads a claim of an owner whose claims are taken.
fn good(shared: &Shared, item: &[u8]) -> Result<(Claim, Option<Manifest>), String> {
    let (claim, manifest) = read_told(item).map_err(|error| error.to_string())?;
    if shared.owners.as_ref().is_some_and(|owners| !owners(&claim.owner)) {
        return Err("claims of this owner are not taken here".to_owned());
    }
    // A manifest is the owner's word only if the claim names it: whoever tells it may have put any other beside it.
    if let Some(manifest) = &manifest {
        let is_named = claim.object == manifest.object && claim.word == Word::Erasure(manifest.coding());
        if !is_named {
            return Err(ClaimError::ForeignManifest { id: manifest.id() }.to_string());
        }
    }
    Ok((claim, manifest))
}

/// Takes in the claims that came with an offer, durably. One of them must say what the piece is of, or nobody would know when it is to go.
async fn hear_offer(shared: &Shared, offer: &Offer) -> Result<(), Decline> {
    let (_, items) = words::read(&offer.claim)
        .map_err(|_| Decline::Unwanted { reason: "an offer without a claim".to_owned() })?;
    let mut is_explained = false;
    for item in items.iter().take(TOLD_MAX) {
        let is_about = good(shared, item).is_ok_and(|told| is_about(&told, &offer.id));
        match hear_one(shared, item).await {
            Ok(_) => is_explained |= is_about,
            Err(reason) => tracing::debug!(reason, "a claim that came with an object was not taken"),
        }
    }
    if !is_explained || !shared.store.book().explains(&offer.id) {
        return Err(Decline::Failed { reason: "its claim could not be written down".to_owned() });
    }
    Ok(())
}

fn is_about((claim, manifest): &(Claim, Option<Manifest>), piece: &ContentId) -> bool {
    let of_manifest = |manifest: &Manifest| manifest.shards.contains(piece) || manifest.id() == *piece;
    claim.object == *piece || manifest.as_ref().is_some_and(of_manifest)
}

impl Judge for Telling {
    fn judge(&self, from: NodeId, offer: &Offer) -> Result<(), Decline> {
        let shared = &self.0;
        let unwanted = |reason: &str| Decline::Unwanted { reason: reason.to_owned() };
        if !shared.members.load().contains_key(&from) {
            return Err(unwanted("not a node that keeps objects with this one"));
        }
        if shared.is_draining() {
            return Err(unwanted("this node is about to go"));
        }
        let Ok((Kind::Tell, items)) = words::read(&offer.claim) else {
            return Err(unwanted("an offer without a claim"));
        };
        // It is here and will not be: who relied on that would rely on nothing.
        if shared.promises.lock().is_trimming(&offer.id) {
            return Err(Decline::Failed { reason: GOING.to_owned() });
        }
        let book = shared.store.book();
        let mut is_deleted = false;
        for item in items.iter().take(TOLD_MAX) {
            let told = match good(shared, item) {
                Ok(told) => told,
                Err(reason) => return Err(Decline::Unwanted { reason }),
            };
            let is_about = is_about(&told, &offer.id);
            let (claim, _) = told;
            if !is_about || claim.word.is_tombstone() {
                continue;
            }
            let (object, owner, version) = (claim.object, claim.owner, claim.version);
            if let Err(error) = claim.verify() {
                return Err(Decline::Unwanted { reason: error.to_string() });
            }
            let known = book.about(&object).into_iter().find(|(known, _)| known.owner == owner);
            match known {
                Some((known, _)) if known.word.is_tombstone() && known.version >= version => {
                    is_deleted = true
                }
                // A shard of a policy that is over: whoever offers it has not heard of the next.
                Some((known, _)) if known.version > version && !book.wants(&offer.id) => is_deleted = true,
                _ => return Ok(()),
            }
        }
        Err(if is_deleted { Decline::Deleted } else { unwanted("no claim on it that lives") })
    }

    /// Its claims, before any of it: if the power fails when the piece is here and they are not, and its object is deleted before this
    /// node is back, nobody ever says what the piece is of.
    fn expect<'a>(&'a self, _: NodeId, offer: &'a Offer, _: Deadline) -> BoxFuture<'a, Result<(), Decline>> {
        Box::pin(hear_offer(&self.0, offer))
    }

    fn keep<'a>(
        &'a self,
        _: NodeId,
        offer: &'a Offer,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<(), Decline>> {
        Box::pin(async move {
            let shared = &self.0;
            // Once more, which costs nothing: what was said meanwhile may have had what explains it forgotten.
            hear_offer(shared, offer).await?;
            shared.hear(Heard::Claims).await;
            let failed = |reason: String| Decline::Failed { reason };
            // Read back, all of it: what the disk returns now is what is acknowledged.
            let mut reader =
                shared.store.get(offer.id, .., deadline).await.map_err(|error| failed(error.to_string()))?;
            while reader.next().await.map_err(|error| failed(error.to_string()))?.is_some() {}
            if shared.promises.lock().is_trimming(&offer.id) {
                return Err(failed(GOING.to_owned()));
            }
            match shared.store.has(offer.id, deadline).await {
                Ok(true) => Ok(()),
                _ => Err(failed(GOING.to_owned())),
            }
        })
    }

    fn claims<'a>(
        &'a self,
        from: NodeId,
        body: Bytes,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Bytes, String>> {
        Box::pin(async move {
            let shared = &self.0;
            if !shared.members.load().contains_key(&from) {
                return Err("not a node that keeps objects with this one".to_owned());
            }
            let malformed = |_| "not a question of this kind".to_owned();
            let (kind, items) = words::read(&body).map_err(malformed)?;
            let answer = match kind {
                Kind::Look => vec![Bytes::copy_from_slice(&[flags(shared)])],
                Kind::Compare => {
                    let question = items.first().ok_or("no question")?;
                    let question = read_question(question).map_err(malformed)?;
                    vec![write_parts(&answer(&**shared.store.book(), &question))]
                }
                Kind::Tell => tell(shared, &items).await,
                Kind::Ask => {
                    let names: Result<Vec<ContentId>, _> =
                        items.iter().take(TOLD_MAX).map(|item| read_id(item)).collect();
                    let known = shared.store.book().with_digests(&names.map_err(malformed)?);
                    known.iter().map(|(claim, manifest)| write_told(claim, manifest.as_ref())).collect()
                }
                Kind::Promise => {
                    let [piece, object, told @ ..] = &items[..] else { return Err("no piece".to_owned()) };
                    let (piece, object) =
                        (read_id(piece).map_err(malformed)?, read_id(object).map_err(malformed)?);
                    hear(shared, told).await;
                    vec![Bytes::copy_from_slice(&[promise(shared, piece, object, deadline).await])]
                }
            };
            let mut len = 0;
            let fits = |item: &Bytes| {
                len += item.len() + 9;
                len <= ANSWER_BYTES_MAX
            };
            let answer: Vec<Bytes> = answer.into_iter().take_while(fits).collect();
            Ok(words::write(kind, &answer))
        })
    }
}

/// Hears claims, and answers with what is later than they are.
async fn tell(shared: &Shared, items: &[Bytes]) -> Vec<Bytes> {
    let mut newer = Vec::new();
    let mut is_new = false;
    for item in items.iter().take(TOLD_MAX) {
        match hear_one(shared, item).await {
            Ok((_, Merged::New)) => is_new = true,
            Ok((object, Merged::Older)) => newer.push(object),
            Ok((_, Merged::Same)) => {}
            Err(reason) => tracing::debug!(reason, "a claim was not taken"),
        }
    }
    if is_new {
        shared.hear(Heard::Claims).await;
    }
    let known = newer.iter().flat_map(|object| shared.store.book().about(object));
    known.take(TOLD_MAX).map(|(claim, manifest)| write_told(&claim, manifest.as_ref())).collect()
}

/// Whether this node has a piece, and keeps it for a while.
async fn promise(shared: &Shared, piece: ContentId, object: ContentId, deadline: Deadline) -> u8 {
    let lives = matches!(shared.store.standing(&object), Standing::Live(_));
    if !lives || flags(shared) != IS_DURABLE {
        return NOT_NOW;
    }
    // Promised first and looked at then: nothing can go in between.
    if shared.promises.lock().promise(piece, shared.now()).is_err() {
        return NOT_NOW;
    }
    match shared.store.has(piece, deadline).await {
        Ok(true) => PROMISED,
        Ok(false) => {
            shared.promises.lock().withdraw(&piece);
            NOT_HERE
        }
        Err(_) => NOT_NOW,
    }
}
