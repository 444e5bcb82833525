#pragma once
/// The report of a run: its data as JSON, and one HTML file that shows it.
///
/// The page needs no network and no other file. Every text of the run travels as JSON in which
/// '<', '>' and '&' are written as \u00XX, and the page puts it in place as text, never as markup;
/// a content security policy lets only the page's own script run. Pure: equal folders give equal
/// pages.

#include <string>

#include "launcher/report/run_folder.h"

namespace muster {

/// Everything the page shows. Safe inside a script element. `metrics` holds the numbers of
/// metrics.jsonl, by columns and to the last digit.
std::string report_data(const RunFolder& run);

/// The complete HTML file.
std::string report_page(const RunFolder& run);

}  // namespace muster
