//! JSON-RPC 2.0: what a frame is, and the errors that there are.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

/// A request, a notification or an answer, with its parts still as they were written.
#[derive(Debug, Deserialize)]
pub(crate) struct Frame<'a> {
    #[serde(borrow, default)]
    pub(crate) jsonrpc: Option<Cow<'a, str>>,
    /// Given, perhaps as null, or not at all.
    #[serde(borrow, default, deserialize_with = "given")]
    pub(crate) id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) method: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "given")]
    pub(crate) params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "given")]
    pub(crate) result: Option<&'a RawValue>,
    #[serde(default)]
    pub(crate) error: Option<RpcError>,
}

fn given<'de: 'a, 'a, D: Deserializer<'de>>(d: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(d).map(Some)
}

impl<'a> Frame<'a> {
    /// Reads one frame. The error says what it is not: JSON, or a frame.
    pub(crate) fn parse(text: &'a str) -> Result<Frame<'a>, RpcError> {
        let frame: Frame<'_> =
            serde_json::from_str(text).map_err(|error| match error.classify() {
                serde_json::error::Category::Data => RpcError::invalid_request(&error.to_string()),
                _ => RpcError::parse(&error.to_string()),
            })?;
        if frame.jsonrpc.as_deref() != Some("2.0") {
            return Err(RpcError::invalid_request("`jsonrpc` must be \"2.0\""));
        }
        let id = frame.id.map_or("null", RawValue::get).as_bytes()[0];
        if !matches!(id, b'"' | b'-' | b'0'..=b'9' | b'n') {
            return Err(RpcError::invalid_request(
                "`id` must be a string, a number or null",
            ));
        }
        Ok(frame)
    }
}

/// An error as it is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RpcError {
    /// Which kind.
    pub code: i64,
    /// For people.
    #[serde(default)]
    pub message: String,
    /// For programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl std::fmt::Display for RpcError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

impl std::error::Error for RpcError {}

/// What a method gives back.
pub(crate) type Answer<T> = Result<T, RpcError>;

impl RpcError {
    fn new(code: i64, message: impl Into<String>) -> Self {
        RpcError {
            code,
            message: message.into(),
            data: None,
        }
    }

    pub(crate) fn parse(why: &str) -> Self {
        RpcError::new(-32700, format!("this is not JSON in UTF-8: {why}"))
    }

    pub(crate) fn invalid_request(why: &str) -> Self {
        RpcError::new(-32600, format!("this is not a request: {why}"))
    }

    pub(crate) fn unknown_method(name: &str) -> Self {
        let name: String = name.chars().take(100).collect();
        RpcError::new(-32601, format!("there is no method {name:?}"))
    }

    /// Bad parameters; `field` is where.
    pub(crate) fn params(field: &str, why: impl std::fmt::Display) -> Self {
        RpcError {
            data: Some(json!({ "field": field })),
            ..RpcError::new(-32602, format!("{field}: {why}"))
        }
    }

    pub(crate) fn internal(why: impl std::fmt::Display) -> Self {
        RpcError::new(-32603, why.to_string())
    }

    pub(crate) fn unauthenticated(why: &str) -> Self {
        RpcError::new(-32001, why)
    }

    pub(crate) fn forbidden(why: impl Into<String>) -> Self {
        RpcError::new(-32002, why)
    }

    /// The same words for what is not there and for what belongs to others.
    pub(crate) fn not_found(what: &str) -> Self {
        RpcError::new(-32004, format!("there is no such {what}"))
    }

    pub(crate) fn going_down() -> Self {
        RpcError::new(-32005, "the daemon is going down")
    }

    pub(crate) fn not_now(why: impl Into<String>) -> Self {
        RpcError::new(-32008, why)
    }

    /// The same, with a word for programs.
    pub(crate) fn because(self, reason: &str) -> Self {
        RpcError {
            data: Some(json!({ "reason": reason })),
            ..self
        }
    }

    pub(crate) fn limit(limit: &str, why: impl std::fmt::Display) -> Self {
        RpcError {
            data: Some(json!({ "limit": limit })),
            ..RpcError::new(-32009, why.to_string())
        }
    }

    pub(crate) fn unrecorded(why: impl std::fmt::Display) -> Self {
        RpcError::new(-32010, format!("it could not be recorded: {why}"))
    }
}

/// The frame that answers a request.
pub(crate) fn answer(id: &RawValue, answer: &Answer<Box<RawValue>>) -> String {
    match answer {
        Ok(result) => {
            let (id, result) = (id.get(), result.get());
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}")
        }
        Err(error) => failure(Some(id), error),
    }
}

/// The frame that refuses a request, or something that is none.
pub(crate) fn failure(id: Option<&RawValue>, error: &RpcError) -> String {
    let id = id.map_or("null", RawValue::get);
    let error = serde_json::to_string(error).unwrap_or_else(|_| "{\"code\":-32603}".to_owned());
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}")
}

/// A request to a client.
pub(crate) fn request(id: &str, method: &str, params: &impl Serialize) -> Answer<String> {
    let params = raw(params)?;
    Ok(format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":\"{id}\",\"method\":\"{method}\",\"params\":{params}}}"
    ))
}

/// Something that a client is told.
pub(crate) fn notification(method: &str, params: &impl Serialize) -> Answer<String> {
    let params = raw(params)?;
    Ok(format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"{method}\",\"params\":{params}}}"
    ))
}

/// A value as JSON.
pub(crate) fn raw(value: &impl Serialize) -> Answer<Box<RawValue>> {
    to_raw_value(value).map_err(RpcError::internal)
}

/// Reads parameters; an error names the field.
pub(crate) fn params<P: serde::de::DeserializeOwned>(raw: Option<&RawValue>) -> Answer<P> {
    let text = raw.map_or("{}", RawValue::get);
    let mut json = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let why = error.into_inner().to_string();
        let why = why.split(" at line ").next().unwrap_or_default();
        // A field that is missing or unknown is named only in the words.
        let named = why
            .strip_prefix("missing field `")
            .or_else(|| why.strip_prefix("unknown field `"))
            .and_then(|rest| rest.split('`').next());
        let field = match (path.as_str(), named) {
            ("." | "", Some(named)) => named.to_owned(),
            ("." | "", None) => "params".to_owned(),
            (path, Some(named)) if !path.ends_with(named) => format!("{path}.{named}"),
            (path, _) => path.to_owned(),
        };
        RpcError::params(&field, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[serde(rename = "list")]
        _list: Vec<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[serde(rename = "id")]
        _id: String,
    }

    #[test]
    fn bad_parameters_name_the_field() {
        for (text, field) in [
            ("{}", "list"),
            ("[]", "params"),
            ("7", "params"),
            (r#"{"list":7}"#, "list"),
            (r#"{"list":[{"id":7}]}"#, "list[0].id"),
            (r#"{"list":[{"id":"a"},{}]}"#, "list[1].id"),
            (r#"{"list":[{"id":"a","x":1}]}"#, "list[0].x"),
            (r#"{"list":[],"more":1}"#, "more"),
        ] {
            let raw: &RawValue = serde_json::from_str(text).unwrap();
            let error = params::<Outer>(Some(raw)).unwrap_err();
            assert_eq!(error.code, -32602);
            assert_eq!(error.data.unwrap()["field"], field, "{text}");
        }
    }

    #[test]
    fn frames_are_told_apart() {
        let code = |text: &str| Frame::parse(text).unwrap_err().code;
        assert_eq!(code("{"), -32700);
        assert_eq!(code("nothing"), -32700);
        assert_eq!(code("7"), -32600);
        assert_eq!(code(r#"{"id":1,"method":"x"}"#), -32600);
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":1,"method":7}"#), -32600);
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":{},"method":"x"}"#), -32600);
        let null = Frame::parse(r#"{"jsonrpc":"2.0","id":null,"method":"x"}"#).unwrap();
        assert_eq!(null.id.map(RawValue::get), Some("null"));
        let none = Frame::parse(r#"{"jsonrpc":"2.0","method":"x"}"#).unwrap();
        assert!(none.id.is_none() && none.params.is_none());
    }
}
