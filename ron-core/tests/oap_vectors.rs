//! The vectors of `docs/oap-1/`, which other implementations read too.

#![cfg(not(ron_loom))]
#![allow(clippy::unwrap_used, reason = "in a test, helpers included, a step that fails is the failure")]

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use bytes::{Buf as _, Bytes, BytesMut};
use data_encoding::HEXLOWER;
use ron_core::net::{
    oap::{Code, Decoder, Direction, Flags, Frame, Hello, Kind, PROTO_CONTROL, Streams},
    rpc::{Ask, Control, Fault},
};

/// A file of lines: `#` begins a comment, `>` and `<` a frame of the dialling and of the accepting end, `=` what the
/// frame before it says as a part of a Call, and the other lines name a field and its value.
struct Vector {
    fields: BTreeMap<String, String>,
    frames: Vec<(Direction, Vec<u8>)>,
    says: Vec<(usize, String)>,
}

impl Vector {
    fn read(path: &Path) -> Self {
        let mut vector = Vector { fields: BTreeMap::new(), frames: Vec::new(), says: Vec::new() };
        for line in fs::read_to_string(path).unwrap().lines().filter(|line| !line.starts_with('#')) {
            let (key, value) = line.split_once(' ').unwrap();
            match key {
                // The tests stand on the accepting end.
                ">" => vector.frames.push((Direction::Received, bytes(value))),
                "<" => vector.frames.push((Direction::Sent, bytes(value))),
                "=" => vector.says.push((vector.frames.len() - 1, value.to_owned())),
                _ => drop(vector.fields.insert(key.to_owned(), value.to_owned())),
            }
        }
        vector
    }

    /// What an implementation should say, in the words of the file's `result` line.
    fn verdict(&self) -> (String, Option<Frame>) {
        let mut streams = Streams::new(2, 2);
        let mut last = None;
        for (direction, bytes) in &self.frames {
            let mut buffer = BytesMut::from(&bytes[..]);
            let frame = match Decoder::default().decode(&mut buffer) {
                Ok(Some(frame)) => frame,
                Ok(None) => return ("incomplete".into(), None),
                Err(error) => return (format!("error {}", error.reason()), None),
            };
            assert!(buffer.is_empty(), "one line is one frame");
            let mut encoded = frame.clone().encode().unwrap();
            assert!(encoded.copy_to_bytes(encoded.remaining()) == bytes[..], "it encodes to what it was");
            if self.fields["result"] == "frame" {
                return ("frame".into(), Some(frame)); // the rules between frames are not its subject
            }
            if let Err(error) = streams.on_frame(*direction, &frame) {
                return (format!("error {}", error.reason()), None);
            }
            last = Some(frame);
        }
        ("ok".into(), last)
    }

    fn check_fields(&self, frame: &Frame) {
        let number =
            |key: &str, radix| self.fields.get(key).map(|value| u128::from_str_radix(value, radix).unwrap());
        let check = |key, radix, found: u128| {
            if let Some(expected) = number(key, radix) {
                assert_eq!(found, expected, "{key}");
            }
        };
        check("flags", 16, frame.flags.bits().into());
        check("code", 10, frame.code.number().into());
        check("proto", 10, frame.proto.into());
        check("tenant", 16, frame.tenant);
        check("corr", 10, frame.corr.into());
        check("cap", 10, frame.cap.len() as u128);
        check("payload", 10, frame.payload.len() as u128);
    }
}

/// Hex in groups; `5a*10` is ten times the byte 5a.
fn bytes(text: &str) -> Vec<u8> {
    let group = |group: &str| match group.split_once('*') {
        Some((byte, count)) => HEXLOWER.decode(byte.as_bytes()).unwrap().repeat(count.parse().unwrap()),
        None => HEXLOWER.decode(group.as_bytes()).unwrap(),
    };
    text.split_whitespace().flat_map(group).collect()
}

fn hello_verdict(payload: &[u8]) -> String {
    match Hello::decode(payload) {
        Ok(hello) => {
            let versions: Vec<String> = hello.versions.iter().map(u16::to_string).collect();
            let Hello { frame_bytes_max, inflight_max, features, .. } = hello;
            format!("hello {} {frame_bytes_max} {inflight_max} {features}", versions.join(","))
        }
        Err(error) => format!("error {}", error.reason()),
    }
}

/// What a frame says as a part of a Call.
fn say(frame: &Frame) -> String {
    let hex = |bytes: &[u8]| if bytes.is_empty() { "-".to_owned() } else { HEXLOWER.encode(bytes) };
    let said = match (frame.flags.kind().unwrap(), frame.proto, frame.code) {
        (Kind::Request, ..) => Ask::decode(frame.payload.clone())
            .map(|(ask, body)| {
                format!("request {} {} {} {}", ask.method, ask.budget_ms, ask.credit, hex(&body))
            })
            .ok(),
        (Kind::Event, PROTO_CONTROL, _) => Control::decode(&frame.payload)
            .map(|control| match control {
                Some(Control::Credit { corr, chunks }) => format!("credit {corr} {chunks}"),
                Some(Control::Cancel { corr }) => format!("cancel {corr}"),
                None => "nothing".into(),
            })
            .ok(),
        (Kind::Event, ..) => Ask::decode(frame.payload.clone())
            .map(|(ask, body)| format!("event {} {}", ask.method, hex(&body)))
            .ok(),
        (Kind::Answer, _, Code::Partial) => Some(format!("part {}", hex(&frame.payload))),
        (Kind::Answer, _, Code::Ok) => Some(format!("end {}", hex(&frame.payload))),
        (Kind::Answer, _, code) => {
            let Fault { reason, retry_after, .. } = Fault::decode(code, &frame.payload);
            let retry = retry_after.map_or("-".into(), |pause| pause.as_millis().to_string());
            Some(format!("refusal {retry} {reason}").trim_end().to_owned())
        }
    };
    said.unwrap_or("unreadable".into())
}

/// The payload that says it, written by us.
fn payload(said: &str, code: Code) -> Bytes {
    let words: Vec<&str> = said.splitn(3, ' ').collect();
    let bytes = |hex: &str| if hex == "-" { Vec::new() } else { bytes(hex) };
    match words[..] {
        ["request", method, rest] => {
            let rest: Vec<&str> = rest.split(' ').collect();
            let [budget_ms, credit] = [rest[0], rest[1]].map(|number| number.parse().unwrap());
            Ask { method: method.parse().unwrap(), budget_ms, credit }.encode(&bytes(rest[2]))
        }
        ["event", method, body] => {
            Ask { method: method.parse().unwrap(), budget_ms: 0, credit: 0 }.encode(&bytes(body))
        }
        ["credit", corr, chunks] => {
            let (corr, chunks) = (corr.parse().unwrap(), chunks.parse().unwrap());
            Control::Credit { corr, chunks }.frame().payload
        }
        ["cancel", corr] => Control::Cancel { corr: corr.parse().unwrap() }.frame().payload,
        ["part" | "end", body] => bytes(body).into(),
        ["refusal", retry, reason] => {
            let retry_after = retry.parse().ok().map(Duration::from_millis);
            Fault { code, reason: reason.to_owned().into(), retry_after }.encode()
        }
        _ => panic!("{said}"),
    }
}

/// What is read must be what the file says, and what is written the bytes it has. What cannot be read, a later version
/// and a refusal without words have more than one form, and are only read.
#[test]
fn every_call_says_what_it_should_and_is_written_as_it_was() {
    let mut kinds = BTreeMap::new();
    for (name, vector) in vectors() {
        assert_eq!(name.starts_with("call-"), !vector.says.is_empty(), "{name}");
        for (at, said) in vector.says {
            let mut buffer = BytesMut::from(&vector.frames[at].1[..]);
            let frame = Decoder::default().decode(&mut buffer).unwrap().unwrap();
            assert_eq!(say(&frame), said, "{name}");
            let is_read_only =
                name.starts_with("call-later") || ["unreadable", "refusal -"].contains(&&*said);
            if !is_read_only {
                assert_eq!(payload(&said, frame.code), frame.payload, "{name}: {said}");
            }
            *kinds.entry(said.split(' ').next().unwrap().to_owned()).or_insert(0) += 1;
        }
    }
    let kinds: Vec<&str> = kinds.keys().map(String::as_str).collect();
    let all = ["cancel", "credit", "end", "event", "nothing", "part", "refusal", "request", "unreadable"];
    assert_eq!(kinds, all, "every kind is shown");
}

fn vectors() -> BTreeMap<String, Vector> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/oap-1");
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), Vector::read(&path))).collect()
}

#[test]
fn every_vector_has_its_result() {
    let mut seen = 0;
    for (name, vector) in vectors() {
        println!("{name}");
        let (mut verdict, frame) = vector.verdict();
        if let Some(frame) = frame {
            vector.check_fields(&frame);
            if name.starts_with("hello-") && name != "hello-json" {
                verdict = hello_verdict(&frame.payload);
            }
        }
        assert_eq!(verdict, vector.fields["result"], "{name}");
        seen += 1;
    }
    assert!(seen >= 60, "only {seen} vectors");
}

/// The two frames that every description of the format gives, spelled out here once more by hand.
#[test]
fn the_two_published_frames_are_ours() {
    let hello = Frame { tenant: 0xaa, ..Frame::request(0, 42, &br#"{"ua":"sdk/0.1"}"#[..]) };
    let asked = Frame { tenant: 0xdd, ..Frame::request(200, 123, &b""[..]) };
    let answer = Frame::answer(&asked, ron_core::net::oap::Code::Ok, &b"hello world"[..]);
    assert_eq!(answer.flags, Flags::RESP);
    let hex = |frame: Frame| {
        let mut encoded = frame.encode().unwrap();
        HEXLOWER.encode(&encoded.copy_to_bytes(encoded.remaining()))
    };
    let zeros = "0".repeat(30);
    assert_eq!(
        hex(hello),
        format!("00000036000100010000 0000{zeros}aa0000000000000000002a7b227561223a2273646b2f302e31227d")
            .replace(' ', "")
    );
    assert_eq!(
        hex(answer),
        format!("00000031000100 0200c800c8{zeros}dd0000000000000000007b68656c6c6f20776f726c64")
            .replace(' ', "")
    );
}
