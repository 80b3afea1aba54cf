"""AWS's Query protocol, as far as SQS and SNS share it: shapes, parameters, members of requests, XML of answers."""
