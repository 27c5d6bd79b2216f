//! Proposing, approving, committing. Whoever comes here was let in before anything of the body was read.

use axum::{
    extract::{Path, Request, State, rejection::PathRejection},
    response::{IntoResponse as _, Response},
};
use http::{HeaderValue, StatusCode, header};
use ron_core::http::{Json, Problem};

use super::{
    asking::{approving, deadline, founding, numbers, submission},
    refusal::{form, problem},
};
use crate::{
    FormError, Outcome, ProposalId, Refused, Registry,
    json::{OutcomeBody, PendingBody},
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

pub(super) async fn pending(
    State(registry): State<Registry>,
    request: Request,
) -> Result<Json<Vec<PendingBody>>, Problem> {
    numbers(&request, [])?;
    let pending = registry.pending(deadline(&request)).await.map_err(problem)?;
    Ok(Json(pending.iter().map(PendingBody::from).collect()))
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
