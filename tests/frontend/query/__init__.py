"""Tests of the Query protocol's parts that SQS and SNS share."""
