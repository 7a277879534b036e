//! The output and the exit code of a command.

use crate::cli::text::clean;
use std::fmt;
use std::io::{self, ErrorKind, Write};

/// The output and the exit code of a command.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Text for standard output.
    pub output: String,
    /// Text for standard error.
    pub remarks: String,
    /// Errors for standard error, one per line, which get the program's name as a prefix.
    pub problems: String,
    /// The exit code.
    pub code: u8,
}

impl Answer {
    /// Returns a successful answer.
    #[must_use]
    pub fn well(output: String) -> Self {
        Self { output, ..Self::default() }
    }

    /// Returns an answer with exit code 1, for a failure of the cluster or of AWS.
    #[must_use]
    pub fn failed(problem: &impl fmt::Display) -> Self {
        Self { problems: problem.to_string(), code: 1, ..Self::default() }
    }

    /// Returns an answer with exit code 2, for a wrong command line or input.
    #[must_use]
    pub fn wrong(problem: &impl fmt::Display) -> Self {
        Self { problems: problem.to_string(), code: 2, ..Self::default() }
    }

    /// Writes the answer. Returns the exit code, which is 1 if the output could not be written completely.
    pub fn print(self, out: &mut impl Write, err: &mut impl Write) -> u8 {
        let Self { output, remarks, mut problems, mut code } = self;
        if let Err(error) = written(out, &output) {
            problems = format!("the output can't be written: {error}; it is incomplete\n{problems}");
            code = 1;
        }
        let mut errors = remarks;
        for problem in problems.lines() {
            errors.push_str("ebbtide: ");
            // It may quote text from elsewhere.
            errors.push_str(&clean(problem));
            errors.push('\n');
        }
        // A failure here can't be reported anywhere.
        let _ = written(err, &errors);
        code
    }
}

/// Writes a text. A reader that stops early is no error.
fn written(to: &mut impl Write, text: &str) -> io::Result<()> {
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Buffers all bytes, and fails on the flush if there are more than `room`.
    struct Full {
        room: usize,
        held: usize,
        then: ErrorKind,
    }

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.held += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            if self.held > self.room { Err(self.then.into()) } else { Ok(()) }
        }
    }

    fn said(room: usize, then: ErrorKind) -> (u8, String) {
        let mut err = Vec::new();
        let (mut out, answer) = (Full { room, held: 0, then }, Answer::well("four".to_owned()));
        let code = answer.print(&mut out, &mut err);
        (code, String::from_utf8(err).unwrap())
    }

    #[test]
    fn what_is_not_written_is_a_failure_unless_nobody_reads() {
        assert_eq!(said(4, ErrorKind::StorageFull), (0, String::new()));
        let (code, told) = said(3, ErrorKind::StorageFull);
        assert_eq!(code, 1);
        assert!(told.starts_with("ebbtide: the output can't be written: ") && told.lines().count() == 1, "{told}");
        assert_eq!(said(3, ErrorKind::BrokenPipe), (0, String::new()));
    }

    #[test]
    fn each_problem_is_a_line_of_its_own_and_remarks_stay_as_they_are() {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let (remarks, problems) = ("Lost:\n  a: b\n".to_owned(), "one\ntwo".to_owned());
        let code = Answer { output: "values".to_owned(), remarks, problems, code: 3 }.print(&mut out, &mut err);
        assert_eq!((code, &*out), (3, "values".as_bytes()));
        assert_eq!(String::from_utf8(err).unwrap(), "Lost:\n  a: b\nebbtide: one\nebbtide: two\n");
    }
}
