"""Two devices, one for serving and one for training, against the same two shared by both: `trace` is what is asked,
`arms` how the devices are divided, `figures` what came of it. Servers and trainers are those of
`benchmarks.colocation`."""
