//! Where a queue is, as its URL says.

/// What a queue's URL says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The region, in a URL of AWS's own.
    pub region: Option<String>,
    /// The account.
    pub account: Option<String>,
    /// The queue's name.
    pub name: String,
}

impl Place {
    /// Reads a queue's URL.
    #[must_use]
    pub fn of(url: &str) -> Option<Self> {
        let uri = url.parse::<http::Uri>().ok()?;
        let mut path = uri.path().rsplit('/').filter(|part| !part.is_empty());
        let name = path.next()?.to_owned();
        let digits = |part: &&str| part.len() == 12 && part.bytes().all(|b| b.is_ascii_digit());
        let account = path.next().filter(digits).map(str::to_owned);
        let host = uri.host().unwrap_or_default();
        let amazon = [".amazonaws.com", ".amazonaws.com.cn", ".api.aws"].iter().any(|end| host.ends_with(end));
        let parts: Vec<&str> = host.split('.').collect();
        // sqs.REGION.amazonaws.com, ID.sqs.REGION.vpce.amazonaws.com, and of old REGION.queue.amazonaws.com.
        let after = parts.iter().position(|part| *part == "sqs" || *part == "sqs-fips").map(|at| at + 1);
        let region = match after {
            Some(at) => parts.get(at),
            None => parts.iter().position(|part| *part == "queue").and_then(|at| parts.get(at.checked_sub(1)?)),
        };
        let region = region.filter(|region| amazon && region.contains('-')).map(|region| (*region).to_owned());
        Some(Self { region, account, name })
    }

    /// The region that a queue's URL names.
    #[must_use]
    pub fn region_of(url: &str) -> Option<String> {
        Self::of(url)?.region
    }

    /// Its ARN, if all of it is known.
    #[must_use]
    pub fn arn(&self) -> Option<String> {
        let (region, account) = (self.region.as_ref()?, self.account.as_ref()?);
        let partition = match region.as_str() {
            china if china.starts_with("cn-") => "aws-cn",
            gov if gov.starts_with("us-gov-") => "aws-us-gov",
            _ => "aws",
        };
        Some(format!("arn:{partition}:sqs:{region}:{account}:{}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide";

    #[test]
    fn a_url_says_where_a_queue_is() {
        let place = |url| Place::of(url).map(|place| (place.region, place.account, place.name));
        let aws = |region: &str| Some((Some(region.to_owned()), Some("123456789012".to_owned()), "ebbtide".to_owned()));
        for (url, region) in [
            (URL, "eu-west-1"),
            ("https://vpce-1-2.sqs.us-east-1.vpce.amazonaws.com/123456789012/ebbtide", "us-east-1"),
            ("https://sqs.cn-north-1.amazonaws.com.cn/123456789012/ebbtide", "cn-north-1"),
            ("https://us-east-2.queue.amazonaws.com/123456789012/ebbtide", "us-east-2"),
            ("https://sqs.us-west-2.api.aws/123456789012/ebbtide", "us-west-2"),
            ("https://sqs-fips.us-gov-west-1.amazonaws.com/123456789012/ebbtide", "us-gov-west-1"),
        ] {
            assert_eq!(place(url), aws(region), "{url}");
        }
        let local = (None, Some("000000000000".to_owned()), "q".to_owned());
        assert_eq!(place("http://127.0.0.1:5000/000000000000/q"), Some(local));
        assert_eq!(place("https://sqs.example.com/q").unwrap().0, None);
        let arn = |url| Place::of(url)?.arn();
        assert_eq!(arn(URL).as_deref(), Some("arn:aws:sqs:eu-west-1:123456789012:ebbtide"));
        assert_eq!(arn("https://sqs.cn-north-1.amazonaws.com.cn/1/q"), None, "its account is none");
        let china = arn("https://sqs.cn-north-1.amazonaws.com.cn/123456789012/q");
        assert_eq!(china.as_deref(), Some("arn:aws-cn:sqs:cn-north-1:123456789012:q"));
    }
}
