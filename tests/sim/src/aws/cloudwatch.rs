//! CloudWatch, which knows the age of the queue's oldest message.

use super::query::respond;
use super::refusal::{Refusal, Words};
use super::sqs::Sqs;
use crate::clock::Clock;
use crate::fault::{Disconnected, Edge};
use aws_smithy_cbor::{Decoder, Encoder};
use aws_smithy_types::DateTime;
use bytes::Bytes;

/// Where its operations are, by the name that the service has in the protocol.
pub(super) const PATH: &str = "/service/GraniteServiceVersion20100801/operation/";

const WORDS: Words = Words {
    throttled_status: 400,
    throttled: "Throttling",
    denied: "AccessDenied",
    invalid: "InvalidParameterValue",
    internal: "InternalServiceFault",
    unavailable: "ServiceUnavailable",
};

#[derive(Clone, Debug)]
pub(super) struct CloudWatch {
    clock: Clock,
    edge: Edge,
    sqs: Sqs,
}

impl CloudWatch {
    pub fn new(clock: Clock, edge: Edge, sqs: Sqs) -> Self {
        Self { clock, edge, sqs }
    }

    pub async fn serve(&self, operation: &str, body: &Bytes) -> Result<http::Response<Bytes>, Disconnected> {
        let asked = text(body, "MetricName").unwrap_or_default();
        let refuse = |fault| Refusal::planned(fault, &WORDS).map(|refusal| no(&refusal));
        let serve = async {
            match (operation, asked.as_str()) {
                ("GetMetricStatistics", "ApproximateAgeOfOldestMessage") => self.ages(),
                ("GetMetricStatistics", _) => points(&[]),
                _ => no(&Refusal::new("UnknownOperation", format!("There is no operation {operation}."))),
            }
        };
        self.edge.pass("cloudwatch", operation, &asked, refuse, serve).await
    }

    /// One number a minute. The newest does not stand last: CloudWatch promises no order.
    fn ages(&self) -> http::Response<Bytes> {
        let Some(age) = self.sqs.oldest() else { return points(&[]) };
        let now = self.clock.now().as_second();
        points(&[(now, age.as_secs_f64()), (now - 60, 0.0)])
    }
}

/// A text of the request's outermost map, which ends by a mark if it does not say how long it is.
fn text(body: &Bytes, wanted: &str) -> Option<String> {
    let mut decoder = Decoder::new(body);
    let entries = decoder.map().ok()?;
    for _ in 0..entries.unwrap_or(u64::MAX) {
        if decoder.str().ok()? == wanted {
            return decoder.string().ok();
        }
        decoder.skip().ok()?;
    }
    None
}

fn points(points: &[(i64, f64)]) -> http::Response<Bytes> {
    let mut encoder = Encoder::new(Vec::new());
    encoder.map(1).str("Datapoints").array(points.len());
    for (at, maximum) in points {
        encoder.map(2).str("Timestamp").timestamp(&DateTime::from_secs(*at)).str("Maximum").double(*maximum);
    }
    answer(200, encoder)
}

fn no(refusal: &Refusal) -> http::Response<Bytes> {
    let mut encoder = Encoder::new(Vec::new());
    encoder.map(2).str("__type").str(&refusal.code).str("message").str(&refusal.message);
    answer(refusal.status, encoder)
}

fn answer(status: u16, body: Encoder) -> http::Response<Bytes> {
    let mut response = respond(status, "application/cbor", body.into_writer());
    response.headers_mut().insert("smithy-protocol", http::HeaderValue::from_static("rpc-v2-cbor"));
    response
}
