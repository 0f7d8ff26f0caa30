//! The control API as a document: the routes of a host, and below each sandbox's name those of the sandbox.

use utoipa::OpenApi as _;
use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn, PathItem};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{InfoBuilder, ObjectBuilder, OpenApi, Required, Type};

/// What a host puts before the routes of one of its sandboxes.
const PREFIX: &str = "/v1/sandboxes/{name}/control";

const DESCRIPTION: &str = "What `sandboxd` speaks. A host has all of these routes; a `sandboxd serve` of its own has those \
    below `/v1/sandboxes/{name}/control`, without that prefix, and takes its own boot's token. Each answer of a sandbox \
    carries `x-sandbox-boot-id`; a request that carries another boot's id is answered 410 and does nothing.";

/// OpenAPI 3.1 in YAML.
pub(crate) fn yaml() -> Result<String, String> {
    document().to_yaml().map_err(|error| error.to_string())
}

fn document() -> OpenApi {
    let mut sandbox = crate::serve::Document::openapi();
    for item in sandbox.paths.paths.values_mut() {
        for operation in operations(item) {
            let name = ParameterBuilder::new()
                .name("name")
                .parameter_in(ParameterIn::Path)
                .required(Required::True)
                .description(Some("The sandbox's name on the host"))
                .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
                .build();
            operation.parameters.get_or_insert_default().push(name.into());
        }
    }
    let mut document = crate::host::routes::Document::openapi().nest(PREFIX, sandbox);
    document.info = InfoBuilder::new()
        .title("sandboxd control API")
        .version(sandbox_api::API_VERSION.to_string())
        .description(Some(DESCRIPTION))
        .build();
    let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    document.components.get_or_insert_default().add_security_scheme("token", bearer);
    document.security = Some(vec![SecurityRequirement::new("token", Vec::<String>::new())]);
    document
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.head].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_an_id_of_its_own() {
        let mut document = document();
        let mut ids: Vec<String> =
            document.paths.paths.values_mut().flat_map(operations).filter_map(|it| it.operation_id.clone()).collect();
        let count = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!((ids.len(), count), (33, 33));
    }

    #[test]
    fn the_committed_document_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../openapi/sandboxd.yaml");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == yaml().expect("the document"),
            "openapi/sandboxd.yaml is stale: run `cargo xtask openapi`"
        );
    }
}
