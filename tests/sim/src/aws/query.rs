//! AWS's query protocols: forms in, XML out. Auto Scaling and EC2 differ only in how they wrap an answer.

use super::refusal::Refusal;
use bytes::Bytes;
use std::collections::BTreeMap;

/// Request ID of every answer: clients log it, and nothing depends on its value.
pub(super) const REQUEST_ID: &str = "eb7175de-0000-4000-8000-000000000000";

/// A decoded form body.
#[derive(Debug)]
pub(super) struct Form(BTreeMap<String, String>);

impl Form {
    pub fn parse(body: &[u8]) -> Self {
        Self(form_urlencoded::parse(body).into_owned().collect())
    }

    /// Returns a field's value; an empty value counts as absent, as at AWS.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns `prefix.1`, `prefix.2` and so on, up to the first gap.
    pub fn list(&self, prefix: &str) -> Vec<&str> {
        (1..).map_while(|n| self.get(&format!("{prefix}.{n}"))).collect()
    }
}

/// An XML document under construction.
#[derive(Debug, Default)]
pub(super) struct Xml(String);

impl Xml {
    /// Adds an element with children, which `fill` adds.
    pub fn nest(&mut self, name: &str, fill: impl FnOnce(&mut Self)) {
        self.0.extend(["<", name, ">"]);
        fill(self);
        self.close(name);
    }

    /// Adds an element with text.
    pub fn text(&mut self, name: &str, value: &str) {
        self.nest(name, |xml| {
            for letter in value.chars() {
                match letter {
                    '&' => xml.0.push_str("&amp;"),
                    '<' => xml.0.push_str("&lt;"),
                    '>' => xml.0.push_str("&gt;"),
                    _ => xml.0.push(letter),
                }
            }
        });
    }

    fn close(&mut self, name: &str) {
        self.0.extend(["</", name, ">"]);
    }

    fn document(root: &str, namespace: &str, fill: impl FnOnce(&mut Self)) -> Self {
        let mut xml = Self(format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{root}"));
        if !namespace.is_empty() {
            xml.0.extend([" xmlns=\"", namespace, "\""]);
        }
        xml.0.push('>');
        fill(&mut xml);
        xml.close(root);
        xml
    }
}

/// Auto Scaling's answer: a result element, then the metadata.
pub(super) fn answer_wrapped(operation: &str, fill: impl FnOnce(&mut Xml)) -> http::Response<Bytes> {
    let namespace = "http://autoscaling.amazonaws.com/doc/2011-01-01/";
    let xml = Xml::document(&format!("{operation}Response"), namespace, |xml| {
        xml.nest(&format!("{operation}Result"), fill);
        xml.nest("ResponseMetadata", |xml| xml.text("RequestId", REQUEST_ID));
    });
    respond(200, "text/xml", xml.0)
}

/// EC2's answer: the request id, then the fields themselves.
pub(super) fn answer_flat(operation: &str, fill: impl FnOnce(&mut Xml)) -> http::Response<Bytes> {
    let namespace = "http://ec2.amazonaws.com/doc/2016-11-15/";
    let xml = Xml::document(&format!("{operation}Response"), namespace, |xml| {
        xml.text("requestId", REQUEST_ID);
        fill(xml);
    });
    respond(200, "text/xml;charset=UTF-8", xml.0)
}

/// Auto Scaling's error answer.
pub(super) fn refuse_wrapped(refusal: &Refusal) -> http::Response<Bytes> {
    let xml = Xml::document("ErrorResponse", "http://autoscaling.amazonaws.com/doc/2011-01-01/", |xml| {
        xml.nest("Error", |xml| {
            xml.text("Type", if refusal.sender_fault() { "Sender" } else { "Receiver" });
            xml.text("Code", &refusal.code);
            xml.text("Message", &refusal.message);
        });
        xml.text("RequestId", REQUEST_ID);
    });
    respond(refusal.status, "text/xml", xml.0)
}

/// EC2's error answer.
pub(super) fn refuse_flat(refusal: &Refusal) -> http::Response<Bytes> {
    let xml = Xml::document("Response", "", |xml| {
        xml.nest("Errors", |xml| {
            xml.nest("Error", |xml| {
                xml.text("Code", &refusal.code);
                xml.text("Message", &refusal.message);
            });
        });
        xml.text("RequestID", REQUEST_ID);
    });
    respond(refusal.status, "text/xml;charset=UTF-8", xml.0)
}

pub(super) fn respond(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> http::Response<Bytes> {
    http::Response::builder()
        .status(status)
        .header(http::header::CONTENT_TYPE, content_type)
        .header("x-amzn-requestid", REQUEST_ID)
        .body(body.into())
        .expect("a planned status must be a valid one")
}
