//! Credentials of the SDK's own chain. If the chain finds none and a profile is misspelt, the error names the profile: the chain
//! ignores a missing profile, and the error of its last provider misleads.

use aws_config::SdkConfig;
use aws_config::profile::{ProfileSet, load};
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use aws_types::os_shim_internal::{Env, Fs};

/// Returns the same configuration, with errors that name a misspelt profile.
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
            match misspelt(&Fs::real(), &Env::real()).await {
                Some(misspelt) => Err(CredentialsError::not_loaded(misspelt)),
                None => found,
            }
        })
    }

    fn fallback_on_interrupt(&self) -> Option<Credentials> {
        self.0.fallback_on_interrupt()
    }
}

/// Returns an error if the profile, or one it refers to, does not exist; `None` if no profile is named.
async fn misspelt(files: &Fs, environment: &Env) -> Option<String> {
    #[allow(clippy::default_trait_access, reason = "the type is named only in a crate that is not needed otherwise")]
    let profiles = load(files, environment, &Default::default(), None).await.ok()?;
    let name = profiles.selected_profile();
    // Charts set variables without a value to the empty string.
    if ["", "default"].contains(&name) {
        return None;
    }
    let missing = missing(&profiles, name)?;
    let which = if missing == name { String::new() } else { format!(", whose source_profile is \"{missing}\"") };
    Some(format!(
        "AWS_PROFILE is \"{name}\"{which}, and neither the AWS config file nor the credentials file has that profile"
    ))
}

/// Returns the first missing profile among this one and its source profiles.
fn missing<'a>(profiles: &'a ProfileSet, name: &'a str) -> Option<&'a str> {
    let mut seen = Vec::new();
    let mut next = Some(name);
    while let Some(name) = next.filter(|name| !seen.contains(name)) {
        let Some(profile) = profiles.get_profile(name) else { return Some(name) };
        seen.push(name);
        next = profile.get("source_profile");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[default]\nregion = eu-west-1\n[profile own]\naws_access_key_id = A\n\
        [profile role]\nrole_arn = R\nsource_profile = own\n[profile lost]\nrole_arn = R\nsource_profile = onw\n\
        [profile itself]\nrole_arn = R\nsource_profile = itself\n[profile a]\nsource_profile = b\n[profile b]\nsource_profile = a\n";

    async fn said(profile: &str, files: &[(&str, &str)]) -> Option<String> {
        misspelt(&Fs::from_slice(files), &Env::from_slice(&[("HOME", "/home"), ("AWS_PROFILE", profile)])).await
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
}
