"""Tables made from stores: the request to Spark, the job, the files of a version, the check against the changelog."""
