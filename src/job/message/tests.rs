//! The queue and its faults, with jobs and places as they are stored.
