//! Fields of foreign JSON: present or not, a number or its text.

use serde_json::Value;

/// A whole number, also where it is written as text; `None` for anything else and for what is below 0.
pub(super) fn number(v: Option<&Value>) -> Option<u64> {
    match v? {
        Value::Number(n) => n.as_u64(),
        Value::String(s) => s.trim().parse().ok(),
        _ => None,
    }
}

pub(super) fn text(v: Option<&Value>) -> Option<&str> {
    v?.as_str()
}

pub(super) fn flag(v: Option<&Value>) -> bool {
    v.and_then(Value::as_bool).unwrap_or(false)
}

/// A list's items; none where there is no list.
pub(super) fn items(v: Option<&Value>) -> &[Value] {
    v.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
