//! What is committed, over a WebSocket: one text message each, the same words as in the other stream.

use std::{io, time::Duration};

use axum::{
    body::Body,
    extract::{Request, State},
    response::Response,
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use ron_core::{
    Deadline,
    http::{Problem, Upgrade, Upgraded},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{
    asking::numbers,
    stream::{Next, Subscription},
};
use crate::{
    Registry,
    logic::frames::{self, Closing, Sent},
};

/// How long a client may take to take one message, before it is cut off.
const WRITING: Duration = Duration::from_secs(10);

/// Pings without any answer after which a client is gone.
const SILENT_MAX: u32 = 2;

pub(super) async fn serve(State(registry): State<Registry>, request: Request) -> Result<Response, Problem> {
    let [from] = numbers(&request, ["from"])?;
    let accept = handshake(request.headers())?;
    let subscription = Subscription::new(&registry, from, None);
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(
        header::SEC_WEBSOCKET_ACCEPT,
        HeaderValue::try_from(accept).expect("base64 is a header value"),
    );
    let owner = move |upgraded| async move {
        if let Err(error) = run(upgraded, subscription).await {
            tracing::debug!(%error, "a WebSocket ended");
        }
    };
    response.extensions_mut().insert(Upgrade::to(owner));
    Ok(response)
}

fn handshake(headers: &HeaderMap) -> Result<String, Problem> {
    let has = |name: header::HeaderName, wanted: &str| {
        let lines = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        lines.flat_map(|line| line.split(',')).any(|word| word.trim().eq_ignore_ascii_case(wanted))
    };
    let refused = |detail| {
        Problem::new(StatusCode::UPGRADE_REQUIRED, "not_a_websocket", "this is for WebSockets")
            .detail(detail)
            .hint("events without a WebSocket are on stream")
    };
    if !has(header::UPGRADE, "websocket") || !has(header::CONNECTION, "upgrade") {
        return Err(refused("there is no upgrade to websocket"));
    }
    if !has(header::SEC_WEBSOCKET_VERSION, "13") {
        return Err(refused("only version 13 is spoken"));
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY).map_or(&b""[..], HeaderValue::as_bytes);
    frames::accept(key).ok_or_else(|| refused("sec-websocket-key is sixteen bytes in base64"))
}

async fn run(upgraded: Upgraded, mut subscription: Subscription) -> io::Result<()> {
    let Upgraded { mut stream, early, stop, .. } = upgraded;
    let (mut came, mut scrap) = (early.to_vec(), [0; 512]);
    let mut silent = 0;
    loop {
        while let Some(sent) = match frames::take(&mut came) {
            Ok(sent) => sent,
            Err(closing) => return write(&mut stream, frames::close(closing), true).await,
        } {
            silent = 0;
            match sent {
                Sent::Ping(bytes) => write(&mut stream, frames::pong(&bytes), false).await?,
                Sent::Pong => {}
                // What a client says at its end is not repeated to it: that it was heard is enough.
                Sent::Close => return write(&mut stream, frames::close(Closing::Away), true).await,
            }
        }
        tokio::select! {
            biased;
            () = stop.requested() => return write(&mut stream, frames::close(Closing::Away), true).await,
            read = stream.read(&mut scrap) => match read? {
                0 => return Ok(()),
                bytes => came.extend_from_slice(&scrap[..bytes]),
            },
            next = subscription.next() => match next {
                Next::End => return write(&mut stream, frames::close(Closing::Away), true).await,
                Next::Silence if silent == SILENT_MAX => return Ok(()),
                Next::Silence => {
                    silent += 1;
                    write(&mut stream, frames::ping(), false).await?;
                }
                Next::Pruned(first) => {
                    write(&mut stream, frames::text(&format!("{{\"pruned\":{first}}}")), false).await?;
                }
                Next::Ahead(head) => {
                    write(&mut stream, frames::text(&format!("{{\"ahead\":{head}}}")), false).await?;
                }
                Next::Update(update) => {
                    let words = serde_json::to_string(&update).expect("strings and numbers can be written");
                    write(&mut stream, frames::text(&words), false).await?;
                }
            },
        }
    }
}

async fn write(stream: &mut dyn ron_core::http::Stream, frame: Vec<u8>, is_last: bool) -> io::Result<()> {
    let write = async {
        stream.write_all(&frame).await?;
        if is_last { stream.shutdown().await } else { stream.flush().await }
    };
    let written = Deadline::after(WRITING).limit("ws_write", write).await;
    written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
