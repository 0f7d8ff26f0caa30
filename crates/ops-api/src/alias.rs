//! The one rule by which a tool has a second name: `zones.list` and `zones:list` are `listZones`.

/// Names of tools that an alias can stand for: the verb, then the resource as given and in the singular.
#[must_use]
pub fn targets(alias: &str) -> Vec<String> {
    let parts: Vec<&str> = alias.split(['.', ':']).collect();
    let Some((verb, resource)) = parts.split_last().filter(|(_, resource)| !resource.is_empty()) else {
        return Vec::new();
    };
    let pascal: String = resource
        .iter()
        .map(|word| {
            let mut letters = word.chars();
            letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect::<String>()
        })
        .collect();
    let plural = format!("{verb}{pascal}");
    let singulars = ["es", "s"].into_iter().filter_map(|ending| plural.strip_suffix(ending).map(str::to_owned));
    let singulars: Vec<String> = singulars.collect();
    std::iter::once(plural.clone()).chain(singulars).collect()
}

#[cfg(test)]
mod tests {
    use super::targets;

    #[test]
    fn aliases_are_derived_from_resource_and_verb() {
        assert!(targets("zones.list").contains(&"listZones".to_owned()));
        assert!(targets("workers:deploy").contains(&"deployWorker".to_owned()));
        assert!(targets("dns.record.create").contains(&"createDnsRecord".to_owned()));
        assert!(targets("sandboxes.list").contains(&"listSandboxes".to_owned()));
        assert!(targets("exec").is_empty());
        assert!(targets("").is_empty());
        assert!(!targets(".").contains(&"exec".to_owned()));
    }
}
