//! JSON as NCCL 2.28 writes it: a comma is missing between two fields.

use serde_json::Value;

/// The value, and whether commas had to be put in. The error is the one of the text as it stands.
pub(super) fn parse(text: &str) -> Result<(Value, bool), serde_json::Error> {
    match serde_json::from_str(text) {
        Ok(value) => Ok((value, false)),
        Err(e) => serde_json::from_str(&with_commas(text)).map(|v| (v, true)).map_err(|_| e),
    }
}

/// Puts a comma where a value is followed by the beginning of a text or an object.
fn with_commas(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 64);
    let (mut in_text, mut escaped) = (false, false);
    let mut before = ' ';
    for c in text.chars() {
        if in_text {
            in_text = escaped || c != '"';
            escaped = c == '\\' && !escaped;
        } else {
            let ends_value = before.is_alphanumeric() || matches!(before, '"' | '}' | ']');
            if matches!(c, '"' | '{') && ends_value {
                out.push(',');
            }
            in_text = c == '"';
        }
        if !c.is_whitespace() {
            before = c;
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn puts_in_what_is_missing_and_touches_no_text() {
        let broken = r#"{"nvml_dev": 3 "status": {"dead": true} "host": "a \" 1 \"b" "list": [{"x": 1} {"x": 2}]}"#;
        let want = json!({"nvml_dev": 3, "status": {"dead": true}, "host": "a \" 1 \"b", "list": [{"x": 1}, {"x": 2}]});
        assert_eq!(parse(broken).unwrap(), (want, true));
        assert_eq!(parse(r#"{"a": "1 \"2\""}"#).unwrap(), (json!({"a": "1 \"2\""}), false));
        let error = parse("{\"a\": 1,\n\"b\" \"c\" }").unwrap_err();
        assert_eq!((error.line(), error.column()), (2, 5), "the place in the file as it is");
    }

    #[test]
    fn deep_nesting_is_an_error() {
        assert!(parse(&"[".repeat(100_000)).is_err());
    }
}
