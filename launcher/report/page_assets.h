#pragma once
/// The page's parts, compiled in from page.html, page.css and page_*.js by
/// cmake/MusterEmbed.cmake.

#include <string_view>

namespace muster {

extern const std::string_view kPageHtml;  ///< with {{style}}, {{data}}, {{script}}, {{script_hash}}
extern const std::string_view kPageStyle;
extern const std::string_view kPageScript;

}  // namespace muster
