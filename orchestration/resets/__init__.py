"""Parts of the run-book `orchestration.run_books.reset_application`: the start of the input (`target`), the survey of topics, offsets and
disks (`survey`), and the steps on the brokers (`brokers`)."""
