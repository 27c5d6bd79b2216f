//! Proposing, approving, committing. Whoever comes here was let in before anything of the body was read.

use axum::{
    extract::{Path, Request, State, rejection::PathRejection},
    response::{IntoResponse as _, Response},
};
use http::{HeaderValue, StatusCode, header};
use ron_core::http::{Json, Problem, Query, deadline};

use super::{
    asking::{approving, founding, number, numbers, submission},
    reading::{ANSWER_BYTES_MAX, LIMIT, LIMIT_MAX},
    refusal::{form, problem},
};
use crate::{
    FormError, Outcome, PendingProposal, ProposalId, Refused, Registry,
    json::{OutcomeBody, PendingBody, WaitingBody},
};

/// 201 with where the entry is, or 202 with where the proposal waits; links are relative to the place of the request.
fn told(outcome: &Outcome) -> Response {
    let (status, place) = match outcome {
        Outcome::Committed(receipt) => (StatusCode::CREATED, receipt.version.to_string()),
        Outcome::Pending { proposal, .. } => (StatusCode::ACCEPTED, format!("proposals/{proposal}")),
    };
    let mut response = Json(OutcomeBody::from(outcome)).into_response();
    *response.status_mut() = status;
    let place = HeaderValue::try_from(place).expect("digits and hex are a header value");
    response.headers_mut().insert(header::LOCATION, place);
    response
}

pub(super) async fn found(State(registry): State<Registry>, request: Request) -> Result<Response, Problem> {
    numbers(&request, [])?;
    let deadline = deadline(&request);
    let receipt = registry.found(founding(request).await?, deadline).await.map_err(problem)?;
    Ok(told(&Outcome::Committed(receipt)))
}

/// Proposes, and counts what approvals there are.
pub(super) async fn propose(State(registry): State<Registry>, request: Request) -> Result<Response, Problem> {
    numbers(&request, [])?;
    let deadline = deadline(&request);
    let (proposal, approvals) = submission(request).await?;
    // Deciding is another right than proposing.
    if !approvals.is_empty() {
        let refused = FormError::TooLarge { what: "approvals", limit: 0 };
        return Err(form("proposal", &refused).hint("send approvals to approvals, or all at once to commit"));
    }
    Ok(told(&registry.propose(proposal, deadline).await.map_err(problem)?))
}

pub(super) async fn approve(State(registry): State<Registry>, request: Request) -> Result<Response, Problem> {
    numbers(&request, [])?;
    let deadline = deadline(&request);
    let approval = approving(request).await?;
    Ok(told(&registry.approve(approval, deadline).await.map_err(problem)?))
}

pub(super) async fn commit(State(registry): State<Registry>, request: Request) -> Result<Response, Problem> {
    numbers(&request, [])?;
    let deadline = deadline(&request);
    let (proposal, approvals) = submission(request).await?;
    Ok(told(&registry.submit(proposal, approvals, deadline).await.map_err(problem)?))
}

/// Commits what replaces something; what does not was meant otherwise.
pub(super) async fn supersede(
    State(registry): State<Registry>,
    request: Request,
) -> Result<Response, Problem> {
    numbers(&request, [])?;
    let deadline = deadline(&request);
    let (proposal, approvals) = submission(request).await?;
    if proposal.action().prior() == 0 {
        return Err(form("proposal", &FormError::OutOfRange { what: "prior" })
            .hint("it replaces nothing: its prior is the version that bound the name; a first binding goes to commit"));
    }
    Ok(told(&registry.submit(proposal, approvals, deadline).await.map_err(problem)?))
}

/// Where a proposal stands among those that wait: by when it expires, and its id.
type Place = (u64, ProposalId);

fn place(pending: &PendingProposal) -> Place {
    (pending.proposal.expires(), pending.proposal.id())
}

/// Some of what waits. Together that may be as much as memory is set aside for it, so an answer is a page.
pub(super) async fn pending(
    State(registry): State<Registry>,
    request: Request,
) -> Result<Json<WaitingBody>, Problem> {
    let query = Query::of(&request, &["after", "limit"])?;
    let after = query.get("after").map(|text| {
        let place = text.split_once('-').and_then(|(at, id)| Some((number(at)?, id.parse().ok()?)));
        place.ok_or_else(|| Query::refusal("after is what next was in the answer before"))
    });
    let after: Option<Place> = after.transpose()?;
    let limit = query.number("limit")?.unwrap_or(LIMIT).clamp(1, LIMIT_MAX) as usize;
    let waiting = registry.pending(deadline(&request)).await.map_err(problem)?;
    // They are in this order already.
    let from = waiting.partition_point(|one| after.is_some_and(|after| place(one) <= after));
    let mut bytes = 0;
    let fits = |one: &&PendingProposal| {
        let is_first = bytes == 0;
        bytes += one.proposal.encoded().len();
        is_first || bytes <= ANSWER_BYTES_MAX
    };
    let page: Vec<&PendingProposal> = waiting[from..].iter().take(limit).take_while(fits).collect();
    let next = page.last().filter(|_| from + page.len() < waiting.len()).map(|last| {
        let (at, id) = place(last);
        format!("{at}-{id}")
    });
    Ok(Json(WaitingBody { proposals: page.into_iter().map(PendingBody::from).collect(), next }))
}

pub(super) async fn pending_one(
    State(registry): State<Registry>,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Json<PendingBody>, Problem> {
    numbers(&request, [])?;
    let refused = || {
        Problem::new(StatusCode::BAD_REQUEST, "bad_id", "this is no id of a proposal")
            .hint("64 lowercase hex digits")
    };
    let id: ProposalId = path.ok().and_then(|Path(text)| text.parse().ok()).ok_or_else(refused)?;
    let pending = registry.pending(deadline(&request)).await.map_err(problem)?;
    let found = pending.iter().find(|pending| pending.proposal.id() == id);
    found
        .map(|pending| Json(PendingBody::from(pending)))
        .ok_or_else(|| problem(Refused::UnknownProposal.into()))
}
