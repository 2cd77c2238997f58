# Ask bursar with R and httr2: Rscript tour.R DATASET COLUMN COLUMN RHO (docs/howto-json.md says how to run it).
library(httr2)

given <- commandArgs(trailingOnly = TRUE)
none <- setNames(list(), character()) # {} in JSON; list() is []
ask <- function(method, body) {
  request(Sys.getenv("BURSAR_GATEWAY")) |>
    req_url_path_append(paste0("bursar.v1.", method)) |>
    req_auth_bearer_token(Sys.getenv("BURSAR_TOKEN")) |>
    req_options(cainfo = Sys.getenv("BURSAR_CA")) |>
    req_body_json(body) |>
    req_error(body = \(answer) resp_body_json(answer)$message) |>
    req_perform()
}
fit <- list(dataset = given[1], columns = given[2:3], n_components = 2, spend = list(rho = as.numeric(given[4])))
for (one in resp_body_json(ask("CatalogService/ListDatasets", none))$datasets) cat("dataset:", one$name, "\n")
price <- resp_body_json(ask("FitService/Preview", list(dpem = fit)))$price
cat(sprintf("price: epsilon %.3g (%.3g %%)\n", price$epsilon, 100 * price$share))
fit$request_id <- paste0("r-", format(Sys.time(), "%Y%m%d-%H%M%OS6")) # keep it until the model is there: retries are free
lines <- strsplit(resp_body_string(ask("FitService/FitDPEM", fit)), "\n")[[1]]
for (line in lapply(lines, jsonlite::fromJSON)) {
  if (!is.null(line$receipt)) cat("receipt: entry", line$receipt$entry, "\n")
  if (!is.null(line$model)) cat("weights:", line$model$weights$values, "\nmeans:", line$model$means$values, "\n")
}
fit$request_id <- paste0(fit$request_id, "-b")
fit$spend$rho <- 1000
tryCatch(ask("FitService/FitDPEM", fit), httr2_http_429 = \(error) cat("refused:", conditionMessage(error), "\n"))
