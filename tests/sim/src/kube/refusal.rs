//! Errors of the API server: a `Status` object in its own wording, and its HTTP status.

use super::Body;
use super::route::Resource;
use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

/// An error answer.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    code: u16,
    reason: &'static str,
    message: String,
    details: Value,
    retry_after: Option<u32>,
}

impl Refusal {
    /// Returns an error with the reason that belongs to the code.
    pub fn new(code: u16, message: impl Into<String>) -> Self {
        let reason = match code {
            400 => "BadRequest",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            405 => "MethodNotAllowed",
            406 => "NotAcceptable",
            409 => "Conflict",
            410 => "Expired",
            413 => "RequestEntityTooLarge",
            415 => "UnsupportedMediaType",
            422 => "Invalid",
            429 => "TooManyRequests",
            500 => "InternalError",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "",
        };
        Self { code, reason, message: message.into(), details: json!({}), retry_after: None }
    }

    fn about(mut self, resource: Resource, name: &str) -> Self {
        self.details = json!({ "name": name, "kind": resource.plural() });
        if !resource.group().is_empty() {
            self.details["group"] = json!(resource.group());
        }
        self
    }

    fn cause(mut self, reason: &str, message: String) -> Self {
        self.details["causes"] = json!([{ "reason": reason, "message": message }]);
        self
    }

    fn retry_after(mut self, seconds: u32) -> Self {
        self.details["retryAfterSeconds"] = json!(seconds);
        self.retry_after = Some(seconds);
        self
    }

    pub fn not_found(resource: Resource, name: &str) -> Self {
        Self::new(404, format!("{} \"{name}\" not found", resource.qualified())).about(resource, name)
    }

    /// Unknown path.
    pub fn no_such_path() -> Self {
        Self::new(404, "the server could not find the requested resource")
    }

    pub fn not_allowed() -> Self {
        Self::new(405, "the server does not allow this method on the requested resource")
    }

    pub fn already_exists(resource: Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", resource.qualified());
        Self { reason: "AlreadyExists", ..Self::new(409, message).about(resource, name) }
    }

    /// The object has another UID or version than the caller requires.
    pub fn conflict(resource: Resource, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", resource.qualified());
        Self::new(409, message).about(resource, name)
    }

    pub fn stale(resource: Resource, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, why)
    }

    pub fn invalid(resource: Resource, name: &str, field: &str, why: &str) -> Self {
        let message = format!("{} \"{name}\" is invalid: {field}: {why}", resource.kind());
        let mut refusal = Self::new(422, message).about(resource, name).cause("FieldValueInvalid", why.to_owned());
        refusal.details["causes"][0]["field"] = json!(field);
        refusal
    }

    pub fn forbidden(resource: Resource, name: &str, why: &str) -> Self {
        Self::new(403, format!("{} \"{name}\" is forbidden: {why}", resource.qualified())).about(resource, name)
    }

    pub fn namespace_terminating(resource: Resource, name: &str, namespace: &str) -> Self {
        let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
        let cause = format!("namespace {namespace} is being terminated");
        Self::forbidden(resource, name, &why).cause("NamespaceTerminating", cause)
    }

    /// A watch begins before the retained history.
    pub fn expired(asked: u64, oldest: u64) -> Self {
        Self::new(410, format!("too old resource version: {asked} ({oldest})"))
    }

    /// A list's continuation has been forgotten.
    pub fn list_expired() -> Self {
        Self::new(410, "The provided continue parameter is too old to display a consistent list result.")
    }

    /// A read at a version that this server has not reached.
    pub fn too_new(asked: u64, current: u64) -> Self {
        Self::new(504, format!("Too large resource version: {asked}, current: {current}"))
            .cause("ResourceVersionTooLarge", "Too large resource version".to_owned())
            .retry_after(1)
    }

    /// A budget that allows no disruption.
    pub fn budget_exhausted(name: &str, needs: i32, has: i32) -> Self {
        let cause = format!("The disruption budget {name} needs {needs} healthy pods and has {has} currently");
        Self::new(429, "Cannot evict pod as it would violate the pod's disruption budget.")
            .cause("DisruptionBudget", cause)
    }

    /// A budget that the disruption controller has not counted yet.
    pub fn budget_stalled(name: &str) -> Self {
        let cause = format!("The disruption budget {name} is still being processed by the server.");
        Self::new(429, "Cannot evict pod as it would violate the pod's disruption budget.")
            .cause("DisruptionBudget", cause)
            .retry_after(10)
    }

    /// Several budgets match one pod; the server gives this failure no reason.
    pub fn several_budgets() -> Self {
        let why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        Self { reason: "", ..Self::new(500, why) }
    }

    pub fn is_expired(&self) -> bool {
        self.code == 410
    }

    /// Returns the `Status` object.
    pub fn status(&self) -> Value {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message,
            "reason": self.reason, "details": self.details, "code": self.code,
        })
    }

    /// Returns the whole answer.
    pub fn response(&self) -> Response<Body> {
        let mut response = respond(self.code, self.status().to_string());
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// Returns the `Status` of a success.
pub(super) fn success(code: u16) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code })
}

/// Throttling, before the API handles the request: plain text, with a `Retry-After` header.
pub(super) fn overloaded(seconds: u32) -> Response<Body> {
    let mut response = respond(429, "Too many requests, please try again later.\n");
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::RETRY_AFTER, seconds.into());
    response
}

/// Returns an answer with a complete JSON body.
pub(super) fn respond(code: u16, body: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).expect("a status of the simulation must be valid");
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
