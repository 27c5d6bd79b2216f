//! `Content-Digest` (RFC 9530): what a client says the body hashes to, checked as it passes.
//!
//! `sha-256` and `sha-512` are the registered algorithms that are not broken; `blake3` is ours, because who knows the name
//! has it at hand. Others are passed over, as the RFC wants, and so is a request without any.

use data_encoding::BASE64;
use http::HeaderName;
use ron_core::ContentId;
use sha2::{Digest as _, Sha256, Sha512};

/// Where they are said.
pub(super) const HEADER: HeaderName = HeaderName::from_static("content-digest");

/// Said digests in one request. There are three algorithms.
const DIGESTS_MAX: usize = 8;

/// Why a header is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum DigestError {
    #[error("content-digest is written sha-256=:base64:, with commas between several")]
    Malformed,
    #[error("content-digest has a value of the wrong length for {0}")]
    Length(&'static str),
    #[error("content-digest names more than {DIGESTS_MAX} digests")]
    TooMany,
}

/// What the body must hash to.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// The name it must have.
    pub(super) id: Option<ContentId>,
    sha256: Option<(Sha256, [u8; 32])>,
    sha512: Option<(Box<Sha512>, [u8; 64])>,
}

impl Said {
    /// Reads the lines of the header.
    pub(super) fn parse(lines: &[&[u8]]) -> Result<Self, DigestError> {
        let mut said = Said::default();
        let members = lines.iter().flat_map(|line| line.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
        for (number, member) in members.filter(|member| !member.is_empty()).enumerate() {
            if number == DIGESTS_MAX {
                return Err(DigestError::TooMany);
            }
            let member = std::str::from_utf8(member).map_err(|_| DigestError::Malformed)?;
            let (name, value) = member.split_once('=').ok_or(DigestError::Malformed)?;
            let is_key = !name.is_empty()
                && name
                    .bytes()
                    .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'*'));
            // Parameters may follow, and none is defined.
            let value = value.strip_prefix(':').and_then(|value| value.split_once(':'));
            let value =
                value.filter(|(_, after)| after.is_empty() || after.starts_with(';')).map(|(value, _)| value);
            let value = value.filter(|_| is_key).ok_or(DigestError::Malformed)?;
            let value = BASE64.decode(value.as_bytes()).map_err(|_| DigestError::Malformed)?;
            match name {
                "blake3" => said.id = Some(ContentId::from_bytes(exact(&value, "blake3")?)),
                "sha-256" => said.sha256 = Some((Sha256::new(), exact(&value, "sha-256")?)),
                "sha-512" => said.sha512 = Some((Box::default(), exact(&value, "sha-512")?)),
                _ => {}
            }
        }
        Ok(said)
    }

    /// Takes the next bytes of the body.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        if let Some((hasher, _)) = &mut self.sha256 {
            hasher.update(bytes);
        }
        if let Some((hasher, _)) = &mut self.sha512 {
            hasher.update(bytes);
        }
    }

    /// Whether the whole body hashes to what was said, as far as it is not its name.
    pub(super) fn holds(&mut self) -> bool {
        let sha256 = self.sha256.take().is_none_or(|(hasher, said)| hasher.finalize()[..] == said);
        let sha512 = self.sha512.take().is_none_or(|(hasher, said)| hasher.finalize()[..] == said);
        sha256 && sha512
    }
}

fn exact<const N: usize>(value: &[u8], name: &'static str) -> Result<[u8; N], DigestError> {
    value.try_into().map_err(|_| DigestError::Length(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of RFC 9530, for `{"hello": "world"}` and a line feed.
    const SHA256: &str = "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:";

    fn check(header: &str, body: &[u8]) -> Result<bool, DigestError> {
        let mut said = Said::parse(&[header.as_bytes()])?;
        body.chunks(7).for_each(|piece| said.update(piece));
        Ok(said.holds() && said.id.is_none_or(|id| id == ContentId::of(body)))
    }

    #[test]
    fn what_is_said_is_checked() {
        let body = b"{\"hello\": \"world\"}\n";
        assert_eq!(check(SHA256, body), Ok(true));
        assert_eq!(check(SHA256, b"other"), Ok(false));
        assert_eq!(check(&format!("unixsum=:AAAA:, {SHA256}"), b"other"), Ok(false));
        let own = format!("blake3=:{}:", BASE64.encode(ContentId::of(body).as_bytes()));
        assert_eq!(check(&own, body), Ok(true));
        assert_eq!(check(&own, b"other"), Ok(false));
        let long = format!("sha-512=:{}:", BASE64.encode(&Sha512::digest(body)));
        assert_eq!(check(&format!("{SHA256},{long}"), body), Ok(true));
        assert_eq!(check(&long, b"other"), Ok(false));
        assert_eq!(
            check(&format!(",{SHA256};x=1, ,"), body),
            Ok(true),
            "parameters, and members that are empty"
        );
        assert_eq!(check(&format!("{SHA256},"), b"other"), Ok(false));
        assert_eq!(check("md5=:AAAA:", body), Ok(true), "an algorithm that nobody checks");
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for header in [
            "sha-256",
            "sha-256=abc",
            "sha-256=:a:",
            "SHA-256=:AAAA:",
            "sha-256=:AAAA",
            "a=:AAAA:b",
            "=:AAAA:",
        ] {
            assert_eq!(check(header, b""), Err(DigestError::Malformed), "{header}");
        }
        assert_eq!(check("sha-256=:AAAA:", b""), Err(DigestError::Length("sha-256")));
        assert_eq!(check(&["a=:AAAA:"; 9].join(","), b""), Err(DigestError::TooMany));
    }
}
