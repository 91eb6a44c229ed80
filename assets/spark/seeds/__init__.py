"""Seeds: state computed by Spark, written as files with which an application starts."""
