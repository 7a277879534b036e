//! What a command has to say, and how it ends.

use std::fmt;
use std::io::{self, ErrorKind, Write};

/// What a command has to say, and how it ends.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// For standard output.
    pub said: String,
    /// For standard error, as it stands.
    pub remarks: String,
    /// For standard error, one sentence a line.
    pub problems: String,
    /// The exit code.
    pub code: u8,
}

impl Answer {
    /// It went well.
    #[must_use]
    pub fn well(said: String) -> Self {
        Self { said, ..Self::default() }
    }

    /// It could not be done: the cluster or AWS is in the way.
    #[must_use]
    pub fn failed(problem: &impl fmt::Display) -> Self {
        Self { problems: problem.to_string(), code: 1, ..Self::default() }
    }

    /// It was asked for wrongly.
    #[must_use]
    pub fn wrong(problem: &impl fmt::Display) -> Self {
        Self { problems: problem.to_string(), code: 2, ..Self::default() }
    }

    /// Says it. Gives the exit code, which is 1 if the output could not be written: half an answer must not pass for a whole one.
    pub fn say(self, out: &mut impl Write, err: &mut impl Write) -> u8 {
        let Self { said, remarks, mut problems, mut code } = self;
        if let Err(error) = written(out, &said) {
            problems = format!("the output can't be written: {error}; what there is of it is not whole\n{problems}");
            code = 1;
        }
        let mut told = remarks;
        for problem in problems.lines() {
            told.push_str("ebbtide: ");
            told.push_str(problem);
            told.push('\n');
        }
        // There is nowhere left to say that this could not be said.
        let _ = written(err, &told);
        code
    }
}

/// Whoever does not want to read it all is free to stop.
fn written(to: &mut impl Write, text: &str) -> io::Result<()> {
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many bytes, of which it keeps some back until it is flushed, and then fails.
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
        let code = answer.say(&mut out, &mut err);
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
        let code = Answer { said: "values".to_owned(), remarks, problems, code: 3 }.say(&mut out, &mut err);
        assert_eq!((code, &*out), (3, "values".as_bytes()));
        assert_eq!(String::from_utf8(err).unwrap(), "Lost:\n  a: b\nebbtide: one\nebbtide: two\n");
    }
}
