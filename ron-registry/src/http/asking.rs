//! What a request says: numbers, and the bytes in its body.

use axum::extract::Request;
use bytes::Bytes;
use data_encoding::BASE64;
use http::{StatusCode, header};
use ron_core::http::{Json, Problem, Query, collect};

use crate::{
    Approval, FormError, Policy, Proposal,
    json::{ApproveBody, FoundBody, SubmitBody},
};

use super::{CBOR, refusal::form};

/// The parameters of a request, all numbers.
pub(super) fn numbers<const N: usize>(
    request: &Request,
    known: [&'static str; N],
) -> Result<[Option<u64>; N], Problem> {
    let query = Query::of(request, &known)?;
    let mut found = [None; N];
    for (found, name) in found.iter_mut().zip(known) {
        *found = query.number(name)?;
    }
    Ok(found)
}

/// Digits, and nothing else.
pub(super) fn number(text: &str) -> Option<u64> {
    let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_digits.then(|| text.parse().ok()).flatten()
}

fn is_cbor(request: &Request) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    essence.eq_ignore_ascii_case(CBOR)
}

async fn json<T: serde::de::DeserializeOwned>(request: Request) -> Result<T, Problem> {
    use axum::extract::FromRequest as _;
    Ok(Json::<T>::from_request(request, &()).await?.0)
}

fn bytes(field: &str, text: &str) -> Result<Bytes, Problem> {
    let decoded = BASE64.decode(text.as_bytes()).map_err(|error| {
        Problem::new(StatusCode::BAD_REQUEST, "json_data", "a field is not what it should be")
            .detail(format!("{field}: not base64: {error}"))
    })?;
    Ok(decoded.into())
}

fn proposal(bytes: &Bytes) -> Result<Proposal, Problem> {
    Proposal::decode(bytes).map_err(|error| form("proposal", &error))
}

fn approval(bytes: &[u8]) -> Result<Approval, Problem> {
    Approval::decode(bytes).map_err(|error| form("approval", &error))
}

/// A proposal, with approvals if it is JSON.
pub(super) async fn submission(request: Request) -> Result<(Proposal, Vec<Approval>), Problem> {
    if is_cbor(&request) {
        return Ok((proposal(&collect(request).await?)?, Vec::new()));
    }
    let body: SubmitBody = json(request).await?;
    let limit = crate::logic::entry::APPROVALS_MAX;
    // Before any of them is decoded.
    if body.approvals.len() > limit {
        return Err(form("approvals", &FormError::TooLarge { what: "approvals", limit }));
    }
    let approvals = body.approvals.iter().map(|text| approval(&bytes("approvals", text)?));
    Ok((proposal(&bytes("proposal", &body.proposal)?)?, approvals.collect::<Result<_, _>>()?))
}

pub(super) async fn approving(request: Request) -> Result<Approval, Problem> {
    if is_cbor(&request) {
        return approval(&collect(request).await?);
    }
    let body: ApproveBody = json(request).await?;
    approval(&bytes("approval", &body.approval)?)
}

pub(super) async fn founding(request: Request) -> Result<Policy, Problem> {
    let encoded = match is_cbor(&request) {
        true => collect(request).await?,
        false => bytes("policy", &json::<FoundBody>(request).await?.policy)?,
    };
    Policy::decode(&encoded).map_err(|error| {
        Problem::new(StatusCode::BAD_REQUEST, "bad_form", "the bytes are not what they should be")
            .detail(format!("policy: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(uri: &str) -> Result<[Option<u64>; 2], Problem> {
        let request = Request::builder().uri(uri).body(axum::body::Body::empty()).unwrap();
        numbers(&request, ["from", "limit"])
    }

    #[test]
    fn parameters_are_numbers_that_are_known() {
        assert_eq!(ask("/entries?from=3&limit=20").unwrap(), [Some(3), Some(20)]);
        assert_eq!(ask("/entries").unwrap(), [None, None]);
        for (uri, why) in [
            ("/e?form=3", "no parameter"),
            ("/e?from=3&from=4", "twice"),
            ("/e?from=+3", "a number"),
            ("/e?from=", "a number"),
            ("/e?from=99999999999999999999999", "a number"),
        ] {
            let problem = ask(uri).unwrap_err();
            assert!(format!("{problem:?}").contains(why), "{uri}: {problem:?}");
        }
    }
}
