//! THE list of tools. To add one, write its file and add its line here; the rest follows from the registry.

pub mod cloning;
pub mod deciding;
pub mod job_info;
pub mod key_info;
pub mod looking;
pub mod moment;
pub mod path;
pub mod process_info;
pub mod sandbox_info;
pub mod schedule_info;
pub mod secret_info;
pub mod step_info;
pub mod using_secrets;

pub mod approve_job;
pub mod cancel_job;
pub mod create_key;
pub mod create_sandbox;
pub mod create_schedule;
pub mod create_token;
pub mod delete_file;
pub mod delete_schedule;
pub mod delete_secret;
pub mod deploy_pipeline;
pub mod destroy_sandbox;
pub mod download_archive;
pub mod edit_file;
pub mod exec;
pub mod get_audit_log;
pub mod get_job;
pub mod get_job_logs;
pub mod get_metrics;
pub mod get_process;
pub mod get_process_logs;
pub mod get_sandbox;
pub mod get_schedule;
pub mod get_usage;
pub mod kill_process;
pub mod list_alerts;
pub mod list_files;
pub mod list_jobs;
pub mod list_keys;
pub mod list_processes;
pub mod list_sandboxes;
pub mod list_schedules;
pub mod list_secrets;
pub mod list_webhook_deliveries;
pub mod make_directory;
pub mod move_file;
pub mod read_file;
pub mod reject_job;
pub mod retry_job;
pub mod revoke_key;
pub mod rotate_key;
pub mod run_pipeline;
pub mod run_schedule;
pub mod search_files;
pub mod set_alerts;
pub mod set_budget;
pub mod set_job_retention;
pub mod set_limits;
pub mod set_secret;
pub mod start_background_process;
pub mod stat_file;
pub mod stop_sandbox;
pub mod update_sandbox;
pub mod update_schedule;
pub mod upload_archive;
pub mod verify_audit_log;
pub mod wait_for_process;
pub mod wake_sandbox;
pub mod watch_files;
pub mod write_file;
pub mod write_process_input;

use crate::registry::{Entry, Registry};

/// Every tool, in the order in which clients are told of them.
pub fn registry() -> Registry {
    Registry::new(vec![
        Entry::of::<create_sandbox::CreateSandbox>(),
        Entry::of::<get_sandbox::GetSandbox>(),
        Entry::of::<list_sandboxes::ListSandboxes>(),
        Entry::of::<update_sandbox::UpdateSandbox>(),
        Entry::of::<wake_sandbox::WakeSandbox>(),
        Entry::of::<stop_sandbox::StopSandbox>(),
        Entry::of::<destroy_sandbox::DestroySandbox>(),
        Entry::of::<exec::Exec>(),
        Entry::of_raw::<read_file::ReadFile>(),
        Entry::of_raw::<write_file::WriteFile>(),
        Entry::of::<edit_file::EditFile>(),
        Entry::of::<list_files::ListFiles>(),
        Entry::of::<stat_file::StatFile>(),
        Entry::of::<make_directory::MakeDirectory>(),
        Entry::of::<move_file::MoveFile>(),
        Entry::of::<delete_file::DeleteFile>(),
        Entry::of::<search_files::SearchFiles>(),
        Entry::of::<watch_files::WatchFiles>(),
        Entry::of_raw::<download_archive::DownloadArchive>(),
        Entry::of_raw::<upload_archive::UploadArchive>(),
        Entry::of::<start_background_process::StartBackgroundProcess>(),
        Entry::of::<list_processes::ListProcesses>(),
        Entry::of::<get_process::GetProcess>(),
        Entry::of::<kill_process::KillProcess>(),
        Entry::of::<write_process_input::WriteProcessInput>(),
        Entry::of::<get_process_logs::GetProcessLogs>(),
        Entry::of::<wait_for_process::WaitForProcess>(),
        Entry::of::<get_job::GetJob>(),
        Entry::of::<get_job_logs::GetJobLogs>(),
        Entry::of::<list_jobs::ListJobs>(),
        Entry::of::<cancel_job::CancelJob>(),
        Entry::of::<retry_job::RetryJob>(),
        Entry::of::<approve_job::ApproveJob>(),
        Entry::of::<reject_job::RejectJob>(),
        Entry::of::<set_job_retention::SetJobRetention>(),
        Entry::of::<run_pipeline::RunPipeline>(),
        Entry::of::<deploy_pipeline::DeployPipeline>(),
        Entry::of::<create_schedule::CreateSchedule>(),
        Entry::of::<get_schedule::GetSchedule>(),
        Entry::of::<list_schedules::ListSchedules>(),
        Entry::of::<update_schedule::UpdateSchedule>(),
        Entry::of::<delete_schedule::DeleteSchedule>(),
        Entry::of::<run_schedule::RunSchedule>(),
        Entry::of::<set_secret::SetSecret>(),
        Entry::of::<list_secrets::ListSecrets>(),
        Entry::of::<delete_secret::DeleteSecret>(),
        Entry::of::<create_key::CreateKey>(),
        Entry::of::<list_keys::ListKeys>(),
        Entry::of::<rotate_key::RotateKey>(),
        Entry::of::<revoke_key::RevokeKey>(),
        Entry::of::<set_limits::SetLimits>(),
        Entry::of::<create_token::CreateToken>(),
        Entry::of::<get_audit_log::GetAuditLog>(),
        Entry::of::<verify_audit_log::VerifyAuditLog>(),
        Entry::of::<get_metrics::GetMetrics>(),
        Entry::of::<get_usage::GetUsage>(),
        Entry::of::<set_budget::SetBudget>(),
        Entry::of::<set_alerts::SetAlerts>(),
        Entry::of::<list_alerts::ListAlerts>(),
        Entry::of::<list_webhook_deliveries::ListWebhookDeliveries>(),
    ])
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::registry;
    use crate::guardrails::Role;
    use crate::schema::faults;

    #[test]
    fn every_schema_is_one_that_all_clients_take() {
        for entry in registry().list() {
            let tool = entry.description();
            assert_eq!(faults(&tool.input_schema), Vec::<String>::new(), "input of {}", tool.name);
            assert_eq!(faults(&tool.output_schema), Vec::<String>::new(), "output of {}", tool.name);
            assert_eq!(tool.input_schema["additionalProperties"], false, "{} must reject unknown fields", tool.name);
        }
    }

    /// Properties of a schema whose names speak of zones or accounts, as pointers.
    fn of_cloudflare(schema: &Value, pointer: &str) -> Vec<String> {
        match schema {
            Value::Object(fields) => fields
                .iter()
                .flat_map(|(name, field)| {
                    let pointer = format!("{pointer}/{name}");
                    let lower = name.to_lowercase();
                    let is_of_time = lower == "timezone";
                    let speaks =
                        ["zone", "account"].iter().any(|word| lower.contains(word)) && field.is_object() && !is_of_time;
                    let below = of_cloudflare(field, &pointer);
                    speaks.then_some(pointer).into_iter().chain(below).collect::<Vec<_>>()
                })
                .collect(),
            Value::Array(items) => items.iter().flat_map(|item| of_cloudflare(item, pointer)).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn zones_and_accounts_are_named_so_that_the_lists_of_a_key_hold() {
        // What a key may do is no zone that a call is about.
        let exempt = ["/zones", "/accounts"];
        for entry in registry().list() {
            let tool = entry.description();
            for pointer in of_cloudflare(&tool.input_schema, "") {
                let name = pointer.rsplit('/').next().unwrap();
                let is_exempt = pointer.contains("ermissions/") && exempt.iter().any(|end| pointer.ends_with(end));
                let is_known = crate::named::NAMES.iter().any(|(known, _)| *known == name);
                assert!(
                    is_exempt || is_known,
                    "{}: name {pointer} zoneId, zoneIds, accountId or accountIds",
                    tool.name
                );
            }
            let raw = tool.raw_routes.iter().flat_map(|route| route.path.split(['{', '}']).skip(1).step_by(2));
            let query =
                tool.raw_contract.iter().flat_map(|contract| contract.query.iter().map(|parameter| parameter.name));
            for name in raw.chain(query) {
                let speaks = ["zone", "account"].iter().any(|word| name.to_lowercase().contains(word));
                assert!(!speaks, "{}: a raw route names {name}, which nothing is held against", tool.name);
            }
        }
    }

    #[test]
    fn names_are_unique_and_fit_every_client() {
        let registry = registry();
        let names: std::collections::BTreeSet<_> = registry.list().map(|entry| entry.description().name).collect();
        assert_eq!(names.len(), registry.list().count());
        for name in names {
            let mut letters = name.chars();
            assert!(letters.next().is_some_and(|first| first.is_ascii_lowercase()), "{name}");
            assert!(letters.all(|letter| letter.is_ascii_alphanumeric()) && name.len() <= 41, "{name}");
        }
    }

    #[test]
    fn every_field_of_every_input_is_described() {
        for entry in registry().list() {
            let tool = entry.description();
            for (name, field) in tool.input_schema["properties"].as_object().unwrap() {
                assert!(field["description"].as_str().is_some_and(|text| text.len() > 10), "{}.{name}", tool.name);
            }
        }
    }

    #[test]
    fn guardrails_agree_with_annotations() {
        for entry in registry().list() {
            let tool = entry.description();
            let reads = tool.annotations.read_only_hint;
            assert!(!(reads && tool.annotations.destructive_hint), "{}", tool.name);
            // One that reads beyond what a key may see by its labels needs more than a viewer.
            assert!(reads || tool.guardrails.role != Role::Viewer, "a viewer's tools are read-only: {}", tool.name);
            assert!(!tool.guardrails.scopes.is_empty(), "{}", tool.name);
            assert!(tool.guardrails.default_timeout <= tool.guardrails.maximum_timeout, "{}", tool.name);
        }
    }

    #[test]
    fn resource_routes_are_unique_and_their_parameters_are_arguments() {
        let registry = registry();
        let mut seen = std::collections::BTreeSet::new();
        for entry in registry.list() {
            let tool = entry.description();
            for route in tool.routes.iter().chain(tool.raw_routes) {
                assert!(seen.insert((route.method, route.path)), "{} {}", route.method.as_str(), route.path);
                for parameter in route.path.split(['{', '}']).skip(1).step_by(2) {
                    let name = parameter.trim_start_matches('*');
                    assert!(tool.input_schema["properties"][name].is_object(), "{} of {}", name, route.path);
                }
            }
        }
    }
}
