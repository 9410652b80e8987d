//! The framing of WebSocket (RFC 6455), without I/O, for both ends.
//!
//! A message that is too large is read to its end without being kept, so that it can be answered with an error and the
//! connection can go on. What breaks the framing itself cannot be recovered from. There are no extensions.

/// Which end this is. Clients mask what they send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Takes masked frames.
    Server,
    /// Takes frames as they are.
    Client,
}

/// What has arrived.
#[derive(Debug, PartialEq, Eq)]
pub enum Incoming {
    /// A whole text message.
    Text(String),
    /// A whole message that is binary, or text that is not UTF-8.
    NotText,
    /// A message of more bytes than are kept.
    TooLarge(u64),
    /// To be answered with the same bytes.
    Ping(Vec<u8>),
    /// The answer to a ping.
    Pong,
    /// The other end is done.
    Close,
}

/// Nobody knows any more where the next frame begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the framing is broken: {0}")]
pub struct Broken(&'static str);

/// The longest payload of a frame that is no message.
const CONTROL: u64 = 125;

/// Takes bytes, gives messages.
#[derive(Debug)]
pub struct Decoder {
    role: Role,
    limit: usize,
    input: Vec<u8>,
    taken: usize,
    frame: Option<Frame>,
    message: Option<Message>,
    control: Vec<u8>,
}

/// A frame whose payload is being read.
#[derive(Debug)]
struct Frame {
    opcode: u8,
    last: bool,
    left: u64,
    mask: Option<[u8; 4]>,
    /// How far into the mask.
    turn: usize,
}

/// A message whose frames are being read.
#[derive(Debug)]
struct Message {
    text: bool,
    bytes: Vec<u8>,
    size: u64,
}

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

impl Decoder {
    /// Keeps messages of up to `limit` bytes.
    pub fn new(role: Role, limit: usize) -> Self {
        Decoder {
            role,
            limit,
            input: Vec::new(),
            taken: 0,
            frame: None,
            message: None,
            control: Vec::new(),
        }
    }

    /// Where bytes from the other end are to be appended.
    pub fn input(&mut self) -> &mut Vec<u8> {
        if self.taken > 0 {
            self.input.drain(..self.taken);
            self.taken = 0;
        }
        if self.input.is_empty() && self.input.capacity() > 16 * 1024 {
            // A connection that is idle holds next to nothing.
            self.input = Vec::new();
        }
        &mut self.input
    }

    /// The next thing that is there in whole.
    #[expect(
        clippy::should_implement_trait,
        reason = "more can come after there was nothing"
    )]
    pub fn next(&mut self) -> Result<Option<Incoming>, Broken> {
        loop {
            let Some(mut frame) = self.frame.take() else {
                match self.header()? {
                    Some(frame) => self.frame = Some(frame),
                    None => return Ok(None),
                }
                continue;
            };
            self.payload(&mut frame);
            if frame.left > 0 {
                self.frame = Some(frame);
                return Ok(None);
            }
            if let Some(incoming) = self.ended(&frame) {
                return Ok(Some(incoming));
            }
        }
    }

    fn header(&mut self) -> Result<Option<Frame>, Broken> {
        let bytes = &self.input[self.taken..];
        let [first, second, ..] = *bytes else {
            return Ok(None);
        };
        let masked = second & 0x80 != 0;
        let wide = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let size = 2 + wide + if masked { 4 } else { 0 };
        if bytes.len() < size {
            return Ok(None);
        }
        let left = match wide {
            0 => u64::from(second & 0x7f),
            _ => bytes[2..2 + wide]
                .iter()
                .fold(0u64, |number, byte| number << 8 | u64::from(*byte)),
        };
        let mask = masked.then(|| {
            let key = &bytes[2 + wide..size];
            [key[0], key[1], key[2], key[3]]
        });
        let (opcode, last) = (first & 0x0f, first & 0x80 != 0);
        if first & 0x70 != 0 {
            return Err(Broken("a reserved bit is set"));
        }
        if masked != (self.role == Role::Server) {
            return Err(Broken("clients mask, servers do not"));
        }
        match opcode {
            TEXT | BINARY if self.message.is_some() => {
                return Err(Broken("a message begins inside of another"));
            }
            CONTINUATION if self.message.is_none() => {
                return Err(Broken("a message goes on that has not begun"));
            }
            TEXT | BINARY => {
                self.message = Some(Message {
                    text: opcode == TEXT,
                    bytes: Vec::new(),
                    size: 0,
                });
            }
            CONTINUATION => {}
            CLOSE | PING | PONG if last && left <= CONTROL => self.control.clear(),
            CLOSE | PING | PONG => return Err(Broken("a control frame is too long")),
            _ => return Err(Broken("there is no such frame")),
        }
        if let Some(message) = self.message.as_mut().filter(|_| opcode < CLOSE) {
            message.size = message.size.saturating_add(left);
            if message.size > self.limit as u64 {
                message.bytes = Vec::new();
            }
        }
        self.taken += size;
        Ok(Some(Frame {
            opcode,
            last,
            left,
            mask,
            turn: 0,
        }))
    }

    fn payload(&mut self, frame: &mut Frame) {
        let there = self.input.len() - self.taken;
        let take = usize::try_from(frame.left).map_or(there, |left| left.min(there));
        let range = self.taken..self.taken + take;
        self.taken += take;
        frame.left -= take as u64;
        let kept = match &mut self.message {
            _ if frame.opcode >= CLOSE => &mut self.control,
            Some(message) if message.size <= self.limit as u64 => &mut message.bytes,
            _ => return,
        };
        let begin = kept.len();
        kept.extend_from_slice(&self.input[range]);
        if let Some(mask) = frame.mask {
            apply(mask, &mut frame.turn, &mut kept[begin..]);
        }
    }

    fn ended(&mut self, frame: &Frame) -> Option<Incoming> {
        match frame.opcode {
            PING => return Some(Incoming::Ping(std::mem::take(&mut self.control))),
            PONG => return Some(Incoming::Pong),
            CLOSE => return Some(Incoming::Close),
            _ if !frame.last => return None,
            _ => {}
        }
        let message = self.message.take()?;
        if message.size > self.limit as u64 {
            return Some(Incoming::TooLarge(message.size));
        }
        match String::from_utf8(message.bytes) {
            Ok(text) if message.text => Some(Incoming::Text(text)),
            _ => Some(Incoming::NotText),
        }
    }
}

fn apply(mask: [u8; 4], turn: &mut usize, bytes: &mut [u8]) {
    // Whole words first; the mask is turned so that it fits where we are in it.
    let key: [u8; 4] = std::array::from_fn(|n| mask[(*turn + n) % 4]);
    *turn = (*turn + bytes.len()) % 4;
    let word = u64::from_ne_bytes([
        key[0], key[1], key[2], key[3], key[0], key[1], key[2], key[3],
    ]);
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for bytes in words {
        *bytes = (u64::from_ne_bytes(*bytes) ^ word).to_ne_bytes();
    }
    for (n, byte) in rest.iter_mut().enumerate() {
        *byte ^= key[n % 4];
    }
}

/// What is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outgoing {
    /// A message.
    Text(String),
    /// The answer to a ping.
    Pong(Vec<u8>),
    /// The end, with a code.
    Close(u16),
}

impl Outgoing {
    /// Appends the frame to `out`; with a mask if it is a client's.
    pub fn encode(&self, out: &mut Vec<u8>, mask: Option<[u8; 4]>) {
        let code;
        let (opcode, payload): (u8, &[u8]) = match self {
            Outgoing::Text(text) => (TEXT, text.as_bytes()),
            Outgoing::Pong(bytes) => (PONG, bytes),
            Outgoing::Close(number) => {
                code = number.to_be_bytes();
                (CLOSE, &code)
            }
        };
        let masked = if mask.is_some() { 0x80 } else { 0 };
        out.push(0x80 | opcode);
        match payload.len() {
            size @ 0..126 => out.push(masked | size as u8),
            size @ 126..0x1_0000 => {
                out.push(masked | 126);
                out.extend_from_slice(&(size as u16).to_be_bytes());
            }
            size => {
                out.push(masked | 127);
                out.extend_from_slice(&(size as u64).to_be_bytes());
            }
        }
        out.extend_from_slice(&mask.unwrap_or_default()[..if mask.is_some() { 4 } else { 0 }]);
        let begin = out.len();
        out.extend_from_slice(payload);
        if let Some(mask) = mask {
            apply(mask, &mut 0, &mut out[begin..]);
        }
    }
}

/// What a server answers to the key of a handshake.
pub fn accept(key: &str) -> String {
    use base64::Engine as _;
    use sha1::Digest as _;
    let mut hash = sha1::Sha1::new();
    hash.update(key.trim().as_bytes());
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    base64::engine::general_purpose::STANDARD.encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![first, 0x80 | 127];
        out.extend_from_slice(&(payload.len() as u64).to_be_bytes());
        out.extend_from_slice(&[1, 2, 3, 4]);
        let begin = out.len();
        out.extend_from_slice(payload);
        apply([1, 2, 3, 4], &mut 0, &mut out[begin..]);
        out
    }

    fn all(limit: usize, bytes: &[u8], piece: usize) -> Result<Vec<Incoming>, Broken> {
        let mut decoder = Decoder::new(Role::Server, limit);
        let mut all = Vec::new();
        for piece in bytes.chunks(piece) {
            decoder.input().extend_from_slice(piece);
            while let Some(incoming) = decoder.next()? {
                all.push(incoming);
            }
        }
        Ok(all)
    }

    #[test]
    fn messages_come_whole_whatever_the_pieces() {
        let mut bytes = Vec::new();
        bytes.extend(frame(0x01, "grü".as_bytes()));
        bytes.extend(frame(0x89, b"ping"));
        bytes.extend(frame(0x80, "ße".as_bytes()));
        bytes.extend(frame(0x81, &[0xff, 0xfe]));
        bytes.extend(frame(0x82, b"x"));
        bytes.extend(frame(0x81, &[b'a'; 100]));
        bytes.extend(frame(0x81, b"after"));
        bytes.extend(frame(0x88, &[]));
        let expected = vec![
            Incoming::Ping(b"ping".to_vec()),
            Incoming::Text("grüße".into()),
            Incoming::NotText,
            Incoming::NotText,
            Incoming::TooLarge(100),
            Incoming::Text("after".into()),
            Incoming::Close,
        ];
        for piece in [1, 2, 3, 7, 64, 4096] {
            assert_eq!(all(50, &bytes, piece).unwrap(), expected, "{piece}");
        }
    }

    #[test]
    fn what_is_too_large_is_not_kept() {
        let mut decoder = Decoder::new(Role::Server, 10);
        decoder.input().extend(frame(0x01, &[b'x'; 8]));
        assert_eq!(decoder.next().unwrap(), None);
        decoder.input().extend(frame(0x80, &[b'x'; 8]));
        assert_eq!(decoder.next().unwrap(), Some(Incoming::TooLarge(16)));
        let header = frame(0x81, &[]);
        let mut huge = header.clone();
        huge[2..10].copy_from_slice(&u64::MAX.to_be_bytes());
        decoder.input().extend(huge);
        for _ in 0..100 {
            assert_eq!(decoder.next().unwrap(), None);
            decoder.input().extend([0; 1000]);
        }
        assert!(decoder.input().capacity() < 100_000);
    }

    #[test]
    fn broken_framing_is_told() {
        for bytes in [
            frame(0xc1, b"x"),
            frame(0x80, b"x"),
            frame(0x83, b"x"),
            frame(0x09, b"x"),
            frame(0x89, &[0; 126]),
            vec![0x81, 0x01, b'x'],
            [frame(0x01, b"x"), frame(0x81, b"x")].concat(),
        ] {
            assert!(all(50, &bytes, 64).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn what_one_end_sends_the_other_reads() {
        for size in [0, 1, 125, 126, 0xffff, 0x1_0000] {
            let text = Outgoing::Text("y".repeat(size));
            let mut bytes = Vec::new();
            text.encode(&mut bytes, Some([9, 8, 7, 6]));
            let got = all(1 << 20, &bytes, 1000).unwrap();
            assert_eq!(got, [Incoming::Text("y".repeat(size))]);
        }
        // The example of RFC 6455.
        assert_eq!(
            accept("dGhlIHNhbXBsZSBub25jZQ=="),
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
    }
}
