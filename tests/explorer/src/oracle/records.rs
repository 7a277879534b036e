//! What a Node records is read as it was written.

use super::{Oracle, Seen};
use ebbtide::pipeline::Record;
use ebbtide_sim::calls::Call;

impl Oracle {
    /// The annotations that a patch has left are those that their parsed values are written as. The only rule that knows the service: a
    /// replica acts on what it reads, and writes the rest back.
    pub(super) fn records(&self, seen: &mut Seen, call: &Call) {
        let name = call.subject.split('/').next().unwrap_or_default();
        let annotations = self.world.kube.node(name).and_then(|node| node.metadata.annotations);
        let texts = annotations.unwrap_or_default();
        let written = Record::read(texts.clone()).written();
        if written != texts {
            self.broke(seen, "what a Node records is read as it was written", format!("{texts:?} became {written:?}"));
        }
    }
}
