//! What verification costs at the least: files read, hashed and written to the socket, and nothing else.
//!
//! A thread for each connection, one buffer that stays in the processor's cache, and of HTTP just what `wrk` needs. There
//! is no tree, so a range is hashed in the groups that hold it and the hash is not compared with anything. Nobody who looks
//! at every byte that he sends can do with much less.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    ops::Range,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::Arc,
    thread,
};

use crate::measure::Outcome;

/// What one hash of our trees covers.
const GROUP: u64 = 64 << 10;

/// Read, hashed and written at once.
const PIECE: usize = 256 << 10;

/// Writes the objects, says where they are, and serves until its input ends.
pub(crate) fn serve(dir: &Path, objects: usize, content: impl Fn(usize) -> Vec<u8>) -> Outcome<()> {
    let mut files = Vec::new();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "http://{}", listener.local_addr()?)?;
    for number in 0..objects {
        let path = dir.join(number.to_string());
        fs::write(&path, content(number))?;
        files.push(File::open(path)?);
        writeln!(out, "/{number}")?;
    }
    out.flush()?;
    drop(out);
    let files = Arc::new(files);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let files = Arc::clone(&files);
            thread::spawn(move || answer_all(stream, &files));
        }
    });
    std::io::stdin().lines().count();
    Ok(())
}

fn answer_all(mut stream: TcpStream, files: &[File]) -> Outcome<()> {
    stream.set_nodelay(true)?;
    let mut asked = BufReader::new(stream.try_clone()?);
    let mut buffer = vec![0; PIECE];
    let mut line = String::new();
    loop {
        let (mut number, mut range) = (0, None);
        line.clear();
        while asked.read_line(&mut line)? > 2 {
            if let Some(path) = line.strip_prefix("GET /") {
                number = path.split(' ').next().unwrap_or_default().parse()?;
            } else if let Some(bytes) = line.strip_prefix("Range: bytes=") {
                let (first, last) = bytes.trim_end().split_once('-').ok_or("a range has two ends")?;
                range = Some(first.parse::<u64>()?..last.parse::<u64>()? + 1);
            }
            line.clear();
        }
        if line.is_empty() {
            return Ok(());
        }
        let file = files.get(number).ok_or("there is no such file")?;
        let len = file.metadata()?.len();
        answer(&mut stream, file, range.unwrap_or(0..len), len, &mut buffer)?;
    }
}

fn answer(
    stream: &mut TcpStream,
    file: &File,
    range: Range<u64>,
    len: u64,
    buffer: &mut [u8],
) -> Outcome<()> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", range.end - range.start);
    stream.write_all(head.as_bytes())?;
    let end = range.end.div_ceil(GROUP).saturating_mul(GROUP).min(len);
    let mut at = range.start / GROUP * GROUP;
    while at < end {
        let piece = &mut buffer[..PIECE.min((end - at) as usize)];
        file.read_exact_at(piece, at)?;
        for group in piece.chunks(GROUP as usize) {
            std::hint::black_box(blake3::hash(group));
        }
        let from = range.start.saturating_sub(at) as usize;
        let to = piece.len().min((range.end - at) as usize);
        stream.write_all(&piece[from..to])?;
        at += piece.len() as u64;
    }
    Ok(())
}
