"""An instance as a process, and the programs that run before its start: `penstock.runtime.instance`, `.precheck` and `.seed`."""
