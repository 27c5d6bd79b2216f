//! Heads of requests, control events and refusals: whatever comes is read or refused, what is read can be said again,
//! and nothing is allocated beyond what came.

use bytes::Bytes;
use ron_core::net::{
    oap::Code,
    rpc::{Ask, Control, Fault},
};

pub(crate) fn rpc_envelope(data: &[u8]) {
    let whole = Bytes::copy_from_slice(data);
    if let Ok((ask, body)) = Ask::decode(whole.clone()) {
        assert!(whole.ends_with(&body));
        // A budget of zero is said by leaving it out, together with the credit.
        let ask = Ask { budget_ms: ask.budget_ms.max(1), ..ask };
        assert_eq!(Ask::decode(ask.encode(&body)), Ok((ask, body)));
    }
    if let Ok(Some(control)) = Control::decode(data) {
        assert_eq!(Control::decode(&control.frame().payload), Ok(Some(control)));
    }
    for code in [Code::Busy, Code::Failed] {
        let fault = Fault::decode(code, data);
        assert!(fault.reason.len() <= 256);
        assert_eq!(Fault::decode(code, &fault.encode()), fault);
    }
}
