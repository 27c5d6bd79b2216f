//! What there is, what stays, what goes.

use std::time::Duration;

use axum::{
    extract::{Request, State},
    response::{IntoResponse as _, Response},
};
use http::StatusCode;
use ron_core::{
    ContentId,
    http::{Json, Problem, Query, deadline},
};
use serde::Serialize;

use super::{
    asking::{IdPath, for_client, id},
    refusal::problem,
};
use crate::{Cursor, Gc, Stat, Store};

/// What a collection or a scrub may take. Reading a tebibyte at the default pace takes four hours and a half; who has more
/// lets the store scrub by itself.
pub(super) const UPKEEP_MAX: Duration = Duration::from_secs(6 * 3600);

/// Objects in a page if the request does not say.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1000;

#[derive(Serialize)]
pub(super) struct StatBody {
    id: String,
    cid: String,
    size: u64,
    pinned: bool,
    /// Whether it was found damaged and is not served.
    quarantined: bool,
}

impl From<Stat> for StatBody {
    fn from(stat: Stat) -> Self {
        StatBody {
            id: stat.id.to_string(),
            cid: stat.id.to_cid(),
            size: stat.len,
            pinned: stat.is_pinned,
            quarantined: stat.is_quarantined,
        }
    }
}

#[derive(Serialize)]
pub(super) struct PageBody {
    objects: Vec<StatBody>,
    /// What to give as `after` for the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

#[derive(Serialize)]
pub(super) struct UsageBody {
    objects: u64,
    bytes: u64,
    pinned: u64,
    quarantined: u64,
    disk_bytes: u64,
    garbage_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    free_bytes: Option<u64>,
}

#[derive(Serialize)]
pub(super) struct PinBody {
    id: String,
    pinned: bool,
    /// Whether that is new.
    changed: bool,
}

#[derive(Serialize)]
pub(super) struct CollectedBody {
    objects: u64,
    bytes: u64,
    kept: u64,
    dry_run: bool,
}

#[derive(Serialize)]
pub(super) struct ScrubbedBody {
    objects: u64,
    bytes: u64,
    damaged: Vec<String>,
    /// Those that the disk could not read.
    unreadable: Vec<String>,
    /// Stretches of the journal that cannot be read.
    journal_damage: u64,
}

pub(super) async fn stat(
    State(store): State<Store>,
    path: IdPath,
    request: Request,
) -> Result<Json<StatBody>, Problem> {
    let id = id(path)?;
    Query::of(&request, &[])?;
    let stat = for_client(store, &request).stat(id, deadline(&request)).await.map_err(problem)?;
    Ok(Json(stat.into()))
}

pub(super) async fn list(State(store): State<Store>, request: Request) -> Result<Json<PageBody>, Problem> {
    let query = Query::of(&request, &["after", "limit"])?;
    let after = query.get("after").map(ContentId::parse_any).transpose();
    let after = after.map_err(|error| Query::refusal(format!("after: {error}")))?.map(Cursor::after);
    let limit = query.limit("limit", LIMIT, LIMIT_MAX)?;
    let page = for_client(store, &request).list(after, limit, deadline(&request)).await.map_err(problem)?;
    Ok(Json(PageBody {
        objects: page.objects.into_iter().map(StatBody::from).collect(),
        next: page.next.map(|next| next.id().to_string()),
    }))
}

pub(super) async fn usage(State(store): State<Store>, request: Request) -> Result<Json<UsageBody>, Problem> {
    Query::of(&request, &[])?;
    let usage = store.usage();
    Ok(Json(UsageBody {
        objects: usage.objects,
        bytes: usage.bytes,
        pinned: usage.pinned,
        quarantined: usage.quarantined,
        disk_bytes: usage.disk_bytes,
        garbage_bytes: usage.garbage_bytes,
        free_bytes: usage.free_bytes,
    }))
}

pub(super) async fn delete(
    State(store): State<Store>,
    path: IdPath,
    request: Request,
) -> Result<Response, Problem> {
    let id = id(path)?;
    Query::of(&request, &[])?;
    super::taking::check_conditions(&store, id, request.headers(), deadline(&request)).await?;
    match for_client(store, &request).delete(id, deadline(&request)).await.map_err(problem)? {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(problem(crate::StorageError::NotFound { id })),
    }
}

pub(super) async fn pin(
    State(store): State<Store>,
    path: IdPath,
    request: Request,
) -> Result<Json<PinBody>, Problem> {
    set_pinned(store, path, request, true).await
}

pub(super) async fn unpin(
    State(store): State<Store>,
    path: IdPath,
    request: Request,
) -> Result<Json<PinBody>, Problem> {
    set_pinned(store, path, request, false).await
}

async fn set_pinned(
    store: Store,
    path: IdPath,
    request: Request,
    pinned: bool,
) -> Result<Json<PinBody>, Problem> {
    let (id, until) = (id(path)?, deadline(&request));
    Query::of(&request, &[])?;
    let store = for_client(store, &request);
    let changed = if pinned { store.pin(id, until).await } else { store.unpin(id, until).await };
    Ok(Json(PinBody { id: id.to_string(), pinned, changed: changed.map_err(problem)? }))
}

pub(super) async fn gc(State(store): State<Store>, request: Request) -> Result<Json<CollectedBody>, Problem> {
    let dry_run = Query::of(&request, &["dry_run"])?.flag("dry_run")?;
    let gc = if dry_run { Gc::new().dry_run() } else { Gc::new() };
    let collected = store.gc(gc, deadline(&request)).await.map_err(problem)?;
    Ok(Json(CollectedBody {
        objects: collected.objects,
        bytes: collected.bytes,
        kept: collected.kept,
        dry_run,
    }))
}

pub(super) async fn scrub(
    State(store): State<Store>,
    request: Request,
) -> Result<Json<ScrubbedBody>, Problem> {
    Query::of(&request, &[])?;
    let scrubbed = store.scrub(deadline(&request)).await.map_err(problem)?;
    let names = |ids: &[ContentId]| ids.iter().map(ToString::to_string).collect();
    Ok(Json(ScrubbedBody {
        objects: scrubbed.objects,
        bytes: scrubbed.bytes,
        damaged: names(&scrubbed.damaged),
        unreadable: names(&scrubbed.unreadable),
        journal_damage: scrubbed.journal_damage,
    }))
}
