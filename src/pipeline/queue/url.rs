//! A queue's URL: the region, the account and the name in it.

/// Ends of AWS's host names, in each of its partitions; some partitions have another one for IPv6.
const SUFFIXES: [&str; 14] = [
    ".amazonaws.com",
    ".api.aws",
    ".amazonaws.com.cn",
    ".api.amazonwebservices.com.cn",
    ".c2s.ic.gov",
    ".api.aws.ic.gov",
    ".sc2s.sgov.gov",
    ".api.aws.scloud",
    ".cloud.adc-e.uk",
    ".api.cloud-aws.adc-e.uk",
    ".csp.hci.ic.gov",
    ".api.aws.hci.ic.gov",
    ".amazonaws.eu",
    ".api.amazonwebservices.eu",
];

/// Partitions other than `aws`, by the beginning of their regions' names.
const PARTITIONS: [(&str, &str); 7] = [
    ("cn-", "aws-cn"),
    ("us-gov-", "aws-us-gov"),
    ("us-iso-", "aws-iso"),
    ("us-isob-", "aws-iso-b"),
    ("eu-isoe-", "aws-iso-e"),
    ("us-isof-", "aws-iso-f"),
    ("eusc-", "aws-eusc"),
];

/// SQS's first host, which names no region, and its region.
const FIRST_HOST: (&str, &str) = ("queue.amazonaws.com", "us-east-1");

/// A queue's URL, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueUrl {
    /// The region, if the host is one of AWS's.
    pub region: Option<String>,
    /// The account.
    pub account: Option<String>,
    /// The queue's name.
    pub name: String,
}

impl QueueUrl {
    /// Takes a queue's URL apart; `None` for text that is no URL, or that names no queue.
    #[must_use]
    pub fn parse(url: &str) -> Option<Self> {
        let uri = url.parse::<http::Uri>().ok()?;
        let mut path = uri.path().rsplit('/').filter(|part| !part.is_empty());
        let name = path.next()?.to_owned();
        let digits = |part: &&str| part.len() == 12 && part.bytes().all(|b| b.is_ascii_digit());
        let account = path.next().filter(digits).map(str::to_owned);
        let region = region_of_host(uri.host().unwrap_or_default()).map(str::to_owned);
        Some(Self { region, account, name })
    }

    /// Returns the region that a queue's URL names.
    #[must_use]
    pub fn region_of(url: &str) -> Option<String> {
        Self::parse(url)?.region
    }

    /// Returns the queue's ARN, if the URL names all of it.
    #[must_use]
    pub fn arn(&self) -> Option<String> {
        let (region, account) = (self.region.as_ref()?, self.account.as_ref()?);
        let partition = PARTITIONS.iter().find(|(begin, _)| region.starts_with(begin)).map_or("aws", |(_, name)| name);
        Some(format!("arn:{partition}:sqs:{region}:{account}:{}", self.name))
    }
}

/// Returns the region in one of AWS's hosts: `sqs.REGION.amazonaws.com`, `ID.sqs.REGION.vpce.amazonaws.com`, or the legacy
/// `REGION.queue.amazonaws.com`.
fn region_of_host(host: &str) -> Option<&str> {
    if host == FIRST_HOST.0 {
        return Some(FIRST_HOST.1);
    }
    let names = host.strip_suffix(SUFFIXES.iter().find(|end| host.ends_with(**end))?)?;
    let mut names = names.split('.').peekable();
    while let Some(name) = names.next() {
        let region = match (name, names.peek()) {
            ("sqs" | "sqs-fips", Some(region)) => *region,
            (region, Some(&"queue")) => region,
            _ => continue,
        };
        return Some(region).filter(|region| region.contains('-'));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let parts = |url: &str| QueueUrl::parse(url).map(|url| (url.region, url.account, url.name));
        let aws = |region: &str| Some((Some(region.to_owned()), Some("123456789012".to_owned()), "ebbtide".to_owned()));
        for (host, region, partition) in [
            ("sqs.eu-west-1.amazonaws.com", "eu-west-1", "aws"),
            ("sqs.eu-west-1.amazonaws.com:443", "eu-west-1", "aws"),
            ("vpce-1-2.sqs.us-east-1.vpce.amazonaws.com", "us-east-1", "aws"),
            ("vpce-1-2-us-east-1a.sqs.us-east-1.vpce.amazonaws.com", "us-east-1", "aws"),
            ("queue.amazonaws.com", "us-east-1", "aws"),
            ("us-east-2.queue.amazonaws.com", "us-east-2", "aws"),
            ("sqs.us-west-2.api.aws", "us-west-2", "aws"),
            ("sqs-fips.us-west-2.api.aws", "us-west-2", "aws"),
            ("sqs-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1", "aws-us-gov"),
            ("sqs.us-gov-east-1.api.aws", "us-gov-east-1", "aws-us-gov"),
            ("sqs.cn-north-1.amazonaws.com.cn", "cn-north-1", "aws-cn"),
            ("sqs.cn-north-1.api.amazonwebservices.com.cn", "cn-north-1", "aws-cn"),
            ("cn-northwest-1.queue.amazonaws.com.cn", "cn-northwest-1", "aws-cn"),
            ("vpce-1-2.sqs.cn-north-1.vpce.amazonaws.com.cn", "cn-north-1", "aws-cn"),
            ("sqs.us-iso-east-1.c2s.ic.gov", "us-iso-east-1", "aws-iso"),
            ("sqs.us-iso-west-1.api.aws.ic.gov", "us-iso-west-1", "aws-iso"),
            ("sqs.us-isob-east-1.sc2s.sgov.gov", "us-isob-east-1", "aws-iso-b"),
            ("sqs.us-isob-east-1.api.aws.scloud", "us-isob-east-1", "aws-iso-b"),
            ("sqs.eu-isoe-west-1.cloud.adc-e.uk", "eu-isoe-west-1", "aws-iso-e"),
            ("sqs.us-isof-south-1.csp.hci.ic.gov", "us-isof-south-1", "aws-iso-f"),
            ("sqs.eusc-de-east-1.amazonaws.eu", "eusc-de-east-1", "aws-eusc"),
        ] {
            let url = format!("https://{host}/123456789012/ebbtide");
            assert_eq!(parts(&url), aws(region), "{url}");
            let arn = format!("arn:{partition}:sqs:{region}:123456789012:ebbtide");
            assert_eq!(QueueUrl::parse(&url).unwrap().arn(), Some(arn), "{url}");
        }
        // Hosts that are not AWS's, or have no region in its place.
        for host in [
            "sqs.example.com",
            "sqs.eu-west-1.example.com",
            "sqs.amazonaws.com",
            "eu-west-1.amazonaws.com",
            "amazonaws.com",
        ] {
            assert_eq!(QueueUrl::region_of(&format!("https://{host}/123456789012/q")), None, "{host}");
        }
        let local = (None, Some("000000000000".to_owned()), "q".to_owned());
        assert_eq!(parts("http://127.0.0.1:5000/000000000000/q"), Some(local));
        let arn = |url| QueueUrl::parse(url)?.arn();
        assert_eq!(arn("https://sqs.cn-north-1.amazonaws.com.cn/1/q"), None, "its account is not one");
    }
}
