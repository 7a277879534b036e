//! Credentials of the SDK's own chain, with errors that name the problem of the profile in `AWS_PROFILE`. The chain ignores a
//! missing profile, and the error of its last provider misleads. Of a profile that needs the feature `login` it names the feature of its
//! own crate, and no way without.

use aws_config::SdkConfig;
use aws_config::profile::{Profile, load};
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use aws_types::os_shim_internal::{Env, Fs};

/// Returns the same configuration, with errors that name the profile's problem.
pub fn naming_profiles(config: SdkConfig) -> SdkConfig {
    let Some(chain) = config.credentials_provider() else { return config };
    config.into_builder().credentials_provider(SharedCredentialsProvider::new(CredentialsChain(chain))).build()
}

#[derive(Debug)]
struct CredentialsChain(SharedCredentialsProvider);

impl ProvideCredentials for CredentialsChain {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(async {
            let found = self.0.provide_credentials().await;
            if found.is_ok() {
                return found;
            }
            match unusable_profile(&Fs::real(), &Env::real()).await {
                Some(unusable) => Err(CredentialsError::not_loaded(unusable)),
                None => found,
            }
        })
    }

    fn fallback_on_interrupt(&self) -> Option<Credentials> {
        self.0.fallback_on_interrupt()
    }
}

/// Why no credentials can come from a profile.
#[derive(Debug, PartialEq, thiserror::Error)]
enum UnusableProfile {
    /// Neither the config file nor the credentials file has the profile.
    #[error(
        "AWS_PROFILE is \"{chosen}\"{}, and neither the AWS config file nor the credentials file has that profile",
        source_of(.chosen, .name)
    )]
    Missing { chosen: String, name: String },
    /// The profile signs in by a command of the AWS CLI, and this program is built without the feature `login`.
    #[error(
        "AWS_PROFILE is \"{chosen}\"{}, which signs in by {command}: that needs a build with the feature \"login\", such as those in a \
         release's archives; or let the AWS CLI give the credentials: set AWS_PROFILE to another profile of the AWS config file, with \
         `credential_process = aws configure export-credentials --profile {chosen} --format process`",
        source_of(.chosen, .name)
    )]
    NeedsLogin { chosen: String, name: String, command: &'static str },
}

fn source_of(chosen: &str, name: &str) -> String {
    if name == chosen { String::new() } else { format!(", whose source_profile is \"{name}\"") }
}

/// Returns what is wrong with the profile, or with one that it refers to.
async fn unusable_profile(files: &Fs, environment: &Env) -> Option<UnusableProfile> {
    #[allow(clippy::default_trait_access, reason = "the type is named only in a crate that is not needed otherwise")]
    let profiles = load(files, environment, &Default::default(), None).await.ok()?;
    let chosen = profiles.selected_profile();
    let (mut seen, mut next) = (Vec::new(), Some(chosen));
    while let Some(name) = next.filter(|name| !seen.contains(name)) {
        let Some(profile) = profiles.get_profile(name) else {
            // The default profile was not chosen by a user. Charts set variables without a value to the empty string.
            let is_named = !["", "default"].contains(&name) || !seen.is_empty();
            return is_named.then(|| UnusableProfile::Missing { chosen: chosen.to_owned(), name: name.to_owned() });
        };
        if let Some(command) = login_command(profile).filter(|_| !cfg!(feature = "login")) {
            return Some(UnusableProfile::NeedsLogin { chosen: chosen.to_owned(), name: name.to_owned(), command });
        }
        seen.push(name);
        next = profile.get("source_profile");
    }
    None
}

/// Returns the AWS CLI's login command for this profile.
fn login_command(profile: &Profile) -> Option<&'static str> {
    let has = |key| profile.get(key).is_some();
    if has("sso_session") || has("sso_start_url") {
        Some("`aws sso login`")
    } else {
        has("login_session").then_some("`aws login`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[default]\nregion = eu-west-1\n[profile own]\naws_access_key_id = A\n\
        [profile role]\nrole_arn = R\nsource_profile = own\n[profile lost]\nrole_arn = R\nsource_profile = onw\n\
        [profile itself]\nrole_arn = R\nsource_profile = itself\n[profile a]\nsource_profile = b\n[profile b]\nsource_profile = a\n";

    async fn said(profile: &str, files: &[(&str, &str)]) -> Option<String> {
        let environment = Env::from_slice(&[("HOME", "/home"), ("AWS_PROFILE", profile)]);
        unusable_profile(&Fs::from_slice(files), &environment).await.map(|unusable| unusable.to_string())
    }

    #[tokio::test]
    async fn a_profile_that_is_not_there_is_named() {
        let files = [("/home/.aws/config", CONFIG), ("/home/.aws/credentials", "[keys]\naws_access_key_id = A\n")];
        for there in ["", "default", "own", "keys", "role", "itself", "a"] {
            assert_eq!(said(there, &files).await, None, "{there}");
        }
        let not_there = ", and neither the AWS config file nor the credentials file has that profile";
        for files in [&files[..], &[]] {
            assert_eq!(said("nope", files).await, Some(format!("AWS_PROFILE is \"nope\"{not_there}")));
        }
        let lost = "AWS_PROFILE is \"lost\", whose source_profile is \"onw\"";
        assert_eq!(said("lost", &files).await, Some(format!("{lost}{not_there}")));
        assert_eq!(said("own", &[("/home/.aws/config", "[profile own\n")]).await, None, "that is the SDK's to tell");
    }

    #[tokio::test]
    async fn a_profile_that_signs_in_by_the_aws_cli_is_named_with_the_way_without() {
        let config = "[default]\nsso_session = s\n[sso-session s]\nsso_region = r\n[profile old]\nsso_start_url = u\n\
            [profile login]\nlogin_session = a\n[profile role]\nrole_arn = R\nsource_profile = login\n\
            [profile process]\ncredential_process = p\n";
        let files = [("/home/.aws/config", config)];
        for (profile, source, command) in [
            ("default", "", "aws sso login"),
            ("old", "", "aws sso login"),
            ("login", "", "aws login"),
            // The AWS CLI takes the role itself: the source's own credentials would be those of another identity.
            ("role", ", whose source_profile is \"login\"", "aws login"),
            ("process", "", ""),
        ] {
            let said = said(profile, &files).await;
            if cfg!(feature = "login") || command.is_empty() {
                assert_eq!(said, None, "{profile}");
                continue;
            }
            let said = said.expect("the profile must be named");
            let begin = format!("AWS_PROFILE is \"{profile}\"{source}, which signs in by `{command}`: ");
            assert!(said.starts_with(&begin), "{said}");
            let way =
                format!("credential_process = aws configure export-credentials --profile {profile} --format process");
            assert!(said.contains(&way), "{said}");
        }
    }
}
