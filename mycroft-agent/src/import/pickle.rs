//! Pickled data as plain values, without executing anything.
//!
//! A pickle is a program for a stack machine; what makes it dangerous are the few instructions that import a name, call
//! it or build an object. Flight Recorder dumps need none of them, so the reader knows only those that make numbers,
//! strings, lists, tuples and dictionaries, and refuses the rest by name. Why not `serde-pickle`: it neither bounds how
//! deep values nest nor how often a remembered value is copied, and with either a short file fills memory or the stack.
//! Here values live in an arena, a remembered value is a number, and the result is counted while it is unfolded.

use serde_json::{Map, Number, Value};

/// Values in one file; a dump of 20,000 operations with stacks has fewer.
const NODES: usize = 4_000_000;
/// Values after shared ones are written out, and the bytes of their strings.
const UNFOLDED: usize = 8_000_000;
const UNFOLDED_BYTES: usize = 512 << 20;
/// A dump nests 6 deep.
const DEPTH: usize = 32;

/// Why a file is no pickle that can be read, and at which byte.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at}: {what}")]
pub(super) struct PickleError {
    at: usize,
    what: String,
}

/// A value, or a mark on the stack.
#[derive(Debug)]
enum Node {
    Mark,
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    /// Where in the file the text stands.
    Text(usize, usize),
    List(Vec<u32>),
    Dict(Vec<(u32, u32)>),
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the instruction in work began.
    op_at: usize,
    nodes: Vec<Node>,
    stack: Vec<u32>,
    memo: std::collections::BTreeMap<u32, u32>,
}

type Result<T> = std::result::Result<T, PickleError>;

/// The value that a pickle holds.
pub(super) fn read(bytes: &[u8]) -> Result<Value> {
    let mut reader = Reader {
        bytes,
        at: 0,
        op_at: 0,
        nodes: Vec::new(),
        stack: Vec::new(),
        memo: std::collections::BTreeMap::new(),
    };
    let root = reader.run()?;
    let mut budget = Budget { values: UNFOLDED, bytes: UNFOLDED_BYTES };
    reader.unfold(root, 0, &mut budget)
}

struct Budget {
    values: usize,
    bytes: usize,
}

impl Budget {
    fn take(&mut self, bytes: usize) -> Option<()> {
        self.values = self.values.checked_sub(1)?;
        self.bytes = self.bytes.checked_sub(bytes)?;
        Some(())
    }
}

impl<'a> Reader<'a> {
    fn fail<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(PickleError { at: self.op_at, what: what.into() })
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(n).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else { return self.fail("the file ends in the middle of a value") };
        let slice = &self.bytes[self.at..end];
        self.at = end;
        Ok(slice)
    }

    /// A number of up to 8 bytes, little end first.
    fn number(&mut self, n: usize) -> Result<u64> {
        Ok(self.take(n)?.iter().rev().fold(0, |sum, b| (sum << 8) | u64::from(*b)))
    }

    fn length(&mut self, n: usize) -> Result<usize> {
        let length = self.number(n)?;
        usize::try_from(length).or_else(|_| self.fail("a length beyond the file"))
    }

    fn push(&mut self, node: Node) -> Result<()> {
        if self.nodes.len() >= NODES {
            return self.fail(format!("more than {NODES} values"));
        }
        self.stack.push(self.nodes.len() as u32);
        self.nodes.push(node);
        Ok(())
    }

    fn pop(&mut self) -> Result<u32> {
        match self.stack.pop() {
            Some(ix) if !matches!(self.nodes[ix as usize], Node::Mark) => Ok(ix),
            _ => self.fail("a value is missing on the stack"),
        }
    }

    /// What stands above the last mark, which goes.
    fn pop_mark(&mut self) -> Result<Vec<u32>> {
        let at = self.stack.iter().rposition(|ix| matches!(self.nodes[*ix as usize], Node::Mark));
        let Some(at) = at else { return self.fail("no mark on the stack") };
        let items = self.stack.split_off(at + 1);
        self.stack.pop();
        Ok(items)
    }

    fn run(&mut self) -> Result<u32> {
        loop {
            self.op_at = self.at;
            let op = self.take(1)?[0];
            if op == b'.' {
                return self.pop();
            }
            self.step(op)?;
        }
    }

    fn step(&mut self, op: u8) -> Result<()> {
        match op {
            0x80 => self.protocol(),
            // FRAME: only a hint for reading ahead
            0x95 => self.take(8).map(drop),
            b'(' => self.push(Node::Mark),
            b'N' => self.push(Node::Null),
            0x88 => self.push(Node::Bool(true)),
            0x89 => self.push(Node::Bool(false)),
            b'K' | b'M' | b'J' | 0x8a | 0x8b | b'G' => self.scalar(op),
            b'X' | b'T' | b'B' => self.text(4),
            b'U' | 0x8c | b'C' => self.text(1),
            0x8d => self.text(8),
            b']' | b')' => self.push(Node::List(Vec::new())),
            b'}' => self.push(Node::Dict(Vec::new())),
            b't' | 0x85..=0x87 | b'a' | b'e' | b's' | b'u' => self.container(op),
            b'q' | b'r' | 0x94 | b'h' | b'j' => self.memory(op),
            b'0' => self.pop().map(drop),
            b'c' | 0x93 | b'R' | b'b' | b'i' | b'o' | 0x81 | 0x92 | b'P' | b'Q' | 0x82..=0x84 => {
                self.fail(format!("instruction {op:#04x} would load or run code: refused"))
            }
            _ => self.fail(format!("instruction {op:#04x} is none that a Flight Recorder dump has")),
        }
    }

    fn protocol(&mut self) -> Result<()> {
        match self.number(1)? {
            2..=5 => Ok(()),
            n => self.fail(format!("pickle protocol {n}; 2 to 5 are read")),
        }
    }

    fn scalar(&mut self, op: u8) -> Result<()> {
        let node = match op {
            b'K' => Node::Int(self.number(1)? as i64),
            b'M' => Node::Int(self.number(2)? as i64),
            b'J' => Node::Int(i64::from(self.number(4)? as u32 as i32)),
            b'G' => Node::Float(f64::from_bits(self.number(8)?.swap_bytes())),
            _ => {
                let n = self.length(if op == 0x8a { 1 } else { 4 })?;
                let digits = self.take(n)?;
                match long(digits) {
                    Some(n) => Node::Int(n),
                    None => return self.fail("a number beyond 64 bits"),
                }
            }
        };
        self.push(node)
    }

    fn text(&mut self, width: usize) -> Result<()> {
        let n = self.length(width)?;
        let start = self.at;
        self.take(n)?;
        self.push(Node::Text(start, n))
    }

    fn container(&mut self, op: u8) -> Result<()> {
        match op {
            b't' => {
                let items = self.pop_mark()?;
                self.push(Node::List(items))
            }
            0x85..=0x87 => {
                let mut items = Vec::new();
                for _ in 0..=op - 0x85 {
                    items.push(self.pop()?);
                }
                items.reverse();
                self.push(Node::List(items))
            }
            b'a' => {
                let item = self.pop()?;
                self.append(&[item])
            }
            b'e' => {
                let items = self.pop_mark()?;
                self.append(&items)
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set(&[key, value])
            }
            _ => {
                let items = self.pop_mark()?;
                self.set(&items)
            }
        }
    }

    fn top(&mut self) -> Option<&mut Node> {
        let ix = *self.stack.last()?;
        self.nodes.get_mut(ix as usize)
    }

    fn append(&mut self, items: &[u32]) -> Result<()> {
        match self.top() {
            Some(Node::List(list)) => list.extend(items),
            _ => return self.fail("items for what is no list"),
        }
        Ok(())
    }

    fn set(&mut self, items: &[u32]) -> Result<()> {
        let (pairs, []) = items.as_chunks::<2>() else { return self.fail("a key without a value") };
        match self.top() {
            Some(Node::Dict(dict)) => dict.extend(pairs.iter().map(|[k, v]| (*k, *v))),
            _ => return self.fail("keys for what is no dictionary"),
        }
        Ok(())
    }

    fn memory(&mut self, op: u8) -> Result<()> {
        let slot = match op {
            b'q' | b'h' => self.number(1)? as u32,
            b'r' | b'j' => self.number(4)? as u32,
            _ => self.memo.len() as u32,
        };
        if matches!(op, b'h' | b'j') {
            let Some(ix) = self.memo.get(&slot) else { return self.fail(format!("nothing is remembered as {slot}")) };
            // The stack holds numbers only, so its bound is the file's length.
            self.stack.push(*ix);
            return Ok(());
        }
        let Some(ix) = self.stack.last() else { return self.fail("nothing to remember") };
        self.memo.insert(slot, *ix);
        Ok(())
    }

    fn unfold(&self, ix: u32, depth: usize, budget: &mut Budget) -> Result<Value> {
        let over = |what: String| Err(PickleError { at: self.at, what });
        if depth > DEPTH {
            return over(format!("values nest deeper than {DEPTH}"));
        }
        let node = &self.nodes[ix as usize];
        let bytes = if let Node::Text(_, n) = node { *n } else { 0 };
        if budget.take(bytes).is_none() {
            return over("shared values unfold to more than a dump can hold".to_owned());
        }
        Ok(match node {
            Node::Mark | Node::Null => Value::Null,
            Node::Bool(b) => Value::Bool(*b),
            Node::Int(n) => Value::Number((*n).into()),
            Node::Float(f) => Number::from_f64(*f).map_or(Value::Null, Value::Number),
            Node::Text(..) => Value::String(self.string(ix)),
            Node::List(items) => {
                Value::Array(items.iter().map(|i| self.unfold(*i, depth + 1, budget)).collect::<Result<_>>()?)
            }
            Node::Dict(pairs) => {
                let mut map = Map::new();
                for (key, value) in pairs {
                    map.insert(self.key(*key)?, self.unfold(*value, depth + 1, budget)?);
                }
                Value::Object(map)
            }
        })
    }

    fn string(&self, ix: u32) -> String {
        match &self.nodes[ix as usize] {
            Node::Text(start, n) => String::from_utf8_lossy(&self.bytes[*start..start + n]).into_owned(),
            _ => String::new(),
        }
    }

    fn key(&self, ix: u32) -> Result<String> {
        match &self.nodes[ix as usize] {
            Node::Text(_, n) if *n <= 1 << 16 => Ok(self.string(ix)),
            Node::Int(n) => Ok(n.to_string()),
            _ => Err(PickleError { at: self.at, what: "a key that is neither a short text nor a number".to_owned() }),
        }
    }
}

/// A two's complement number, little end first.
fn long(digits: &[u8]) -> Option<i64> {
    if digits.len() > 8 {
        return None;
    }
    let fill = if digits.last().is_some_and(|b| *b >= 0x80) { 0xff } else { 0 };
    let mut bytes = [fill; 8];
    bytes[..digits.len()].copy_from_slice(digits);
    Some(i64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error(bytes: &[u8]) -> String {
        read(bytes).unwrap_err().to_string()
    }

    /// Written with `pickle.dumps(..., 2)`.
    #[test]
    fn plain_values_of_protocol_2() {
        let bytes = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01K\x05X\x01\x00\x00\x00bq\x02]q\x03(J\xff\xff\xff\xff\
            M\x00\x01\x8a\x05\x00\x00\x00\x00\x01\x88Nh\x01eX\x01\x00\x00\x00cq\x04h\x01G?\xf8\x00\x00\x00\x00\x00\x00\
            \x86q\x05u.";
        let want = json!({"a": 5, "b": [-1, 256, 4294967296u64, true, null, "a"], "c": ["a", 1.5]});
        assert_eq!(read(bytes).unwrap(), want);
    }

    #[test]
    fn code_is_refused_where_it_stands() {
        // cos\nsystem\n(S'true'\ntR.
        assert_eq!(error(b"\x80\x02cos\nsystem\n."), "byte 2: instruction 0x63 would load or run code: refused");
        assert!(error(b"\x80\x04\x8c\x02os\x8c\x06system\x93.").contains("refused"));
        assert!(error(b"\x80\x02S'a'\n.").contains("none that"));
    }

    #[test]
    fn what_is_broken_is_told_with_its_place() {
        assert_eq!(error(b"\x80\x02X\xff\xff\xff\x7fab"), "byte 2: the file ends in the middle of a value");
        assert_eq!(error(b"\x80\x02u."), "byte 2: no mark on the stack");
        assert_eq!(error(b"\x80\x02."), "byte 2: a value is missing on the stack");
        assert_eq!(error(b"\x80\x02h\x07."), "byte 2: nothing is remembered as 7");
        assert!(error(b"\x80\x02\x8a\x09123456789.").contains("64 bits"));
        assert!(error(b"\x80\x00.").contains("protocol 0"));
        assert!(error(b"").contains("ends"));
    }

    #[test]
    fn short_files_can_not_unfold_to_large_ones() {
        // Each list holds the one before it ten times: 10^20 values.
        let mut bomb = b"\x80\x02]q\x00".to_vec();
        for n in 0..20u8 {
            bomb.extend_from_slice(b"](");
            bomb.extend([b'h', n].repeat(10));
            bomb.extend([b'e', b'q', n + 1]);
        }
        bomb.push(b'.');
        assert!(error(&bomb).contains("unfold"));
        // A list that holds itself.
        assert!(error(b"\x80\x02]q\x00h\x00a.").contains("nest deeper"));
        let mut deep = b"\x80\x02".to_vec();
        deep.extend([b']'].repeat(100_000));
        deep.extend([b'a'].repeat(99_999));
        deep.push(b'.');
        assert!(error(&deep).contains("nest deeper"));
    }
}
